package sink

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/segmentio/kafka-go/compress"
)

// Compressions lists the names that KafkaConfig.Compression can have.
func Compressions() []string { return []string{"none", "lz4", "zstd", "snappy", "gzip"} }

// packLeast is the least size that is worth compressing.
const packLeast = 512

// packer compresses batches, once, when they are sealed: whatever is sent again is the same bytes.
type packer struct {
	codec compress.Compression
	turns chan struct{} // compressing is bound by the processors, and each writer has buffers of its own

	mu   sync.Mutex // guards the field below
	free [][]byte
}

const (
	packTurns = 2
	packKeep  = 8 // buffers kept for the next batch, each as large as a compressed batch
)

func newPacker(name string) (*packer, error) {
	p := &packer{turns: make(chan struct{}, packTurns)}
	if name == "" || name == "none" {
		return p, nil
	}
	if !slices.Contains(Compressions(), name) {
		return nil, fmt.Errorf("compression %q: want one of %s", name, strings.Join(Compressions(), ", "))
	}
	return p, p.codec.UnmarshalText([]byte(name))
}

// newPackers returns one for each compression, and under "" that of usual.
func newPackers(usual string) map[string]*packer {
	packers := map[string]*packer{}
	turns := make(chan struct{}, packTurns)
	for _, name := range Compressions() {
		p, err := newPacker(name)
		if err != nil {
			panic(err) // the names are our own
		}
		p.turns = turns
		packers[name] = p
	}
	packers[""] = packers[cmp.Or(usual, "none")]
	return packers
}

// pack compresses the batch's records, unless that saves nothing.
func (p *packer) pack(b *Batch) {
	if p.codec == compress.None || b.size < packLeast {
		return
	}
	p.turns <- struct{}{}
	defer func() { <-p.turns }()
	out := packed{buf: p.buffer(), most: b.size}
	w := p.writer(&out)
	var err error
	for _, c := range b.chunks {
		if _, err = w.Write(c); err != nil {
			break
		}
	}
	if e := w.Close(); err == nil {
		err = e
	}
	if err != nil || out.full {
		p.keep(out.buf)
		return
	}
	b.packed, b.codec = out.buf, p.codec
}

// writer returns a compressor. lz4 gets the block size that Java's clients use: kafka-go's own writer takes four
// megabytes a block.
func (p *packer) writer(out io.Writer) io.WriteCloser {
	if p.codec == compress.Lz4 {
		w := lz4.NewWriter(out)
		if w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false)) == nil {
			return w
		}
	}
	return p.codec.Codec().NewWriter(out)
}

// unpackWindow bounds what a batch can make a decompressor keep.
const unpackWindow = 16 << 20

// decompress returns a reader of a batch's records; nil for a compression that nobody here knows. zstd says in its
// first bytes how much memory it wants, which kafka-go's own reader would give to whoever may write to the topic.
func decompress(c compress.Compression, r io.Reader) (io.ReadCloser, error) {
	if c == compress.Zstd {
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(unpackWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	codec := c.Codec()
	if codec == nil {
		return nil, nil
	}
	return codec.NewReader(r), nil
}

// unpack takes the buffer of a batch whose fate is known.
func (p *packer) unpack(b *Batch) {
	if b.packed != nil && !b.open {
		p.keep(b.packed)
		b.packed = nil
	}
}

func (p *packer) buffer() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		buf := p.free[n-1]
		p.free = p.free[:n-1]
		return buf[:0]
	}
	return nil
}

func (p *packer) keep(buf []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if buf != nil && len(p.free) < packKeep {
		p.free = append(p.free, buf)
	}
}

// packed collects what a compressor writes, and gives up when it is no less than what went in.
type packed struct {
	buf  []byte
	most int
	full bool
}

func (p *packed) Write(b []byte) (int, error) {
	if p.full = p.full || len(p.buf)+len(b) >= p.most; !p.full {
		p.buf = append(p.buf, b...)
	}
	return len(b), nil
}
