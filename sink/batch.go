package sink

import (
	"context"
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
	routes []uint16  // of the events, in order; empty in batches of a job
	oldest time.Time // the earliest commit
	eventTimes
	size int // bytes of encoded records

	// The records, whole ones, in order, in pieces of a few fixed sizes: a batch grows without being copied,
	// and a quiet lane holds no more than it needs.
	chunks [][]byte

	head   [sizeLen + batchHeader]byte // filled by seal
	sealed bool

	compression string // what the route asks for; "": the publisher's own

	packed []byte               // the records compressed, nil: they are sent as they are
	codec  compress.Compression // of packed

	// What travels through a lane in its order and is no batch of live events.
	job    *job                               // whose records these are
	letter *Letter                            // to be parked
	task   func(context.Context, *lane) error // to be run by the lane
	after  uint64                             // number of a letter that must be committed before

	tries int
	open  bool // it was sent, and no definite answer came: the records may be there
	// written is how much of it a publisher to a byte stream has got rid of; it goes on from there. sent is how many
	// of its records one that sends them singly has, and refused what it was told of the next one.
	written int
	sent    int
	refused error
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
	b.compression = r.compression
	if len(b.seqs) == 0 || committed.Before(b.oldest) {
		b.oldest = committed
	}
	b.seqs = append(b.seqs, seq)
	if b.job == nil {
		b.routes = append(b.routes, uint16(r.event.Route))
	}
	return n
}

// takes reports whether the record may be added to a batch that is closed at limit bytes.
func (b *Batch) takes(r *record, limit int) bool {
	return !b.special() && b.Len() < maxBatchRecords && b.timed == r.timed && b.compression == r.compression &&
		b.size+r.size(maxBatchRecords) <= limit
}

// special reports whether live events must not be added.
func (b *Batch) special() bool { return b.job != nil || b.letter != nil || b.task != nil }

// aside reports whether it counts neither in the window nor in what a session brings to its end.
func (b *Batch) aside() bool { return b.job != nil && b.job.copies }

// copy adds the i-th record of another batch.
func (b *Batch) copy(p *pool, from *Batch, i int, raw []byte) {
	b.adopt(from, raw)
	delta := int32(len(b.seqs))
	n := sizeRaw(raw, delta)
	dst := b.room(p, n)
	*dst = appendRaw(*dst, raw, delta)
	b.size += n
	b.seqs = append(b.seqs, from.seqs[i])
	if len(from.routes) > 0 {
		b.routes = append(b.routes, from.routes[i])
	}
	b.oldest, b.compression = from.oldest, from.compression
}

// split cuts a batch in two before its n-th record. The parts are new batches of their own bytes.
func (b *Batch) split(p *pool, n int) (first, second *Batch) {
	first, second = p.batch(b.Topic, b.Partition), p.batch(b.Topic, b.Partition)
	first.job, second.job = b.job, b.job
	i := 0
	for raw := range b.raw() {
		to := first
		if i >= n {
			to = second
		}
		to.copy(p, b, i, raw)
		i++
	}
	first.sent, second.sent = min(b.sent, n), max(b.sent-n, 0)
	if b.sent < n {
		first.refused = b.refused
	} else {
		second.refused = b.refused
	}
	return first, second
}
