package sink

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"time"

	"github.com/segmentio/kafka-go/compress"
)

// Sizes of Kafka's record batch, format 2.
const (
	sizeLen     = 4  // a record set on the wire is led by its length
	batchHeader = 61 // what stands before the first record
)

// Batch is a run of records of one partition, encoded as Kafka wants them, with what the lane must remember about
// their events. Once a lane has taken it, nothing is added; its bytes stay the same however often it is sent.
type Batch struct {
	Topic     string
	Partition int32
	Time      time.Time // when it was first about to be sent, in milliseconds; of every record that has no own time

	seqs   []uint64  // the sequence numbers of the events, in order
	oldest time.Time // the earliest commit
	eventTimes
	size int // bytes of encoded records

	// The records, whole ones, in order, in pieces of a few fixed sizes: a batch grows without being copied,
	// and a quiet lane holds no more than it needs.
	chunks [][]byte

	head   [sizeLen + batchHeader]byte // filled by seal
	sealed bool

	packed []byte               // the records compressed, nil: they are sent as they are
	codec  compress.Compression // of packed

	tries int
	open  bool // it was sent, and no definite answer came: the records may be there
	// written is how much of it a publisher to a byte stream has got rid of; it goes on from there.
	written int
}

// Len returns the number of records.
func (b *Batch) Len() int { return len(b.seqs) }

// Size returns the bytes of the encoded records, without the batch header.
func (b *Batch) Size() int { return b.size }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal fills the batch header, once: with it the broker recognises the batch when it comes again.
func (b *Batch) seal(producer int64, epoch int16, sequence int32) {
	if b.sealed {
		return
	}
	b.sealed = true
	be := binary.BigEndian
	base, latest := b.times()
	h := b.head[:]
	body, attributes := b.chunks, uint16(0) // create time, no transaction
	if b.packed != nil {
		body, attributes = [][]byte{b.packed}, uint16(b.codec)
	}
	be.PutUint32(h, uint32(b.wireSize()-sizeLen))
	h = h[sizeLen:]
	be.PutUint64(h[0:], 0)                               // base offset: the broker's to say
	be.PutUint32(h[8:], uint32(b.wireSize()-sizeLen-12)) // length of what follows
	be.PutUint32(h[12:], 0xffffffff)                     // leader epoch: unknown
	h[16] = 2                                            // format
	be.PutUint16(h[21:], attributes)
	be.PutUint32(h[23:], uint32(len(b.seqs)-1)) // last offset delta
	be.PutUint64(h[27:], uint64(base))          // base timestamp
	be.PutUint64(h[35:], uint64(latest))        // largest timestamp
	be.PutUint64(h[43:], uint64(producer))
	be.PutUint16(h[51:], uint16(epoch))
	be.PutUint32(h[53:], uint32(sequence))
	be.PutUint32(h[57:], uint32(len(b.seqs)))
	crc := crc32.Checksum(h[21:], castagnoli)
	for _, c := range body {
		crc = crc32.Update(crc, castagnoli, c)
	}
	be.PutUint32(h[17:], crc)
}

// wireSize returns the bytes of the sealed batch with its length.
func (b *Batch) wireSize() int {
	if b.packed != nil {
		return sizeLen + batchHeader + len(b.packed)
	}
	return sizeLen + batchHeader + b.size
}

// reader returns the sealed batch from its beginning, led by its length. Each try needs its own.
func (b *Batch) reader() io.Reader {
	bufs := make(net.Buffers, 0, 1+len(b.chunks))
	bufs = append(bufs, b.head[:])
	if b.packed != nil {
		bufs = append(bufs, b.packed)
	} else {
		bufs = append(bufs, b.chunks...)
	}
	return &bufs
}

// room makes sure that n more bytes fit behind the last chunk and returns it.
func (b *Batch) room(p *pool, n int) *[]byte {
	if k := len(b.chunks); k > 0 {
		if last := &b.chunks[k-1]; cap(*last)-len(*last) >= n {
			return last
		}
	}
	b.chunks = append(b.chunks, p.chunk(n, len(b.chunks)))
	return &b.chunks[len(b.chunks)-1]
}

// add encodes one record behind the others.
func (b *Batch) add(p *pool, r *record, seq uint64, committed time.Time) int {
	delta := int32(len(b.seqs))
	b.clock(r)
	n := r.size(delta)
	dst := b.room(p, n)
	*dst = r.appendTo(*dst, delta)
	b.size += n
	if len(b.seqs) == 0 || committed.Before(b.oldest) {
		b.oldest = committed
	}
	b.seqs = append(b.seqs, seq)
	return n
}

// split cuts a batch in two before its n-th record. The parts are new batches of their own bytes.
func (b *Batch) split(p *pool, n int) (first, second *Batch) {
	first, second = p.batch(b.Topic, b.Partition), p.batch(b.Topic, b.Partition)
	i := 0
	for raw := range b.raw() {
		to := first
		if i >= n {
			to = second
		}
		to.adopt(b, raw)
		delta := int32(len(to.seqs))
		n := sizeRaw(raw, delta)
		dst := to.room(p, n)
		*dst = appendRaw(*dst, raw, delta)
		to.size += n
		to.seqs = append(to.seqs, b.seqs[i])
		to.oldest = b.oldest
		i++
	}
	return first, second
}
