package sink

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/segmentio/kafka-go/compress"

	"github.com/outboxrelay/relay/outbox"
)

// published is a live record of a relay as it stands in a log: it has a position, and it is no replay. Its bytes
// are good until the next one is read.
type published struct {
	offset   int64
	source   string
	position outbox.Position
	id       []byte
	key      []byte
	value    []byte // nil: null
}

// recordSet reads the records of whole batches one after the other, whatever their compression, and never holds
// more than one of them. What cannot be a relay's live record is passed over: control records, transactions of
// others, batches of older formats, records larger than most bytes. A last batch that is cut short ends it.
type recordSet struct {
	raw  []byte // batches not begun
	most int    // bytes of a record; a larger one is none of ours

	base   int64 // offset of the batch under way
	end    int64 // the offset behind it
	left   int32 // its records not yet read
	body   byteReader
	plain  bytes.Reader
	closer io.Closer // the decompressor, if there is one
	buf    *bufio.Reader
	record []byte // the last record read
	found  published
}

type byteReader interface {
	io.Reader
	io.ByteReader
}

var errUnreadable = errors.New("a batch in the log cannot be read")

// Attributes of a batch.
const (
	attrCompression   = 0x07
	attrTransactional = 0x10
	attrControl       = 0x20
)

// load begins with new batches.
func (s *recordSet) load(raw []byte) {
	s.drop()
	s.raw = raw
}

// drop lets go of everything.
func (s *recordSet) drop() {
	if s.closer != nil {
		s.closer.Close()
	}
	*s = recordSet{most: s.most, buf: s.buf, record: s.record}
	if cap(s.record) > chunk2 {
		s.record = nil
	}
}

// held is roughly how much memory it keeps, without the batches.
func (s *recordSet) held() int {
	n := cap(s.record)
	if s.closer != nil {
		n += 1 << 20
	}
	return n
}

// next returns the next live record of any relay. When there is none, p is nil. passed is the offset behind
// everything that was read: a batch may reach beyond its last record.
func (s *recordSet) next() (p *published, passed int64, err error) {
	for {
		for s.left > 0 {
			s.left--
			p, offset, err := s.read()
			if err != nil {
				return nil, 0, err
			}
			if p != nil {
				return p, offset + 1, nil
			}
		}
		if done, err := s.begin(); err != nil || done {
			return nil, s.end, err
		}
	}
}

// begin opens the next batch, if there is one. left stays 0 where it has nothing for us.
func (s *recordSet) begin() (done bool, err error) {
	if s.closer != nil {
		s.closer.Close()
		s.closer = nil
	}
	const lead = 12 // base offset, length
	if len(s.raw) < lead {
		return true, nil
	}
	s.base = int64(binary.BigEndian.Uint64(s.raw))
	n := int64(int32(binary.BigEndian.Uint32(s.raw[8:])))
	if n > int64(len(s.raw)-lead) {
		return true, nil // cut
	}
	if n < 5 {
		return false, errUnreadable
	}
	b := s.raw[:lead+n]
	s.raw = s.raw[lead+n:]
	s.end = s.base + 1
	if b[16] < 2 {
		return false, nil // a message of before 0.11
	}
	if len(b) < batchHeader || crc32.Checksum(b[21:], castagnoli) != binary.BigEndian.Uint32(b[17:]) {
		return false, errUnreadable
	}
	s.end += int64(int32(binary.BigEndian.Uint32(b[23:])))
	attributes := binary.BigEndian.Uint16(b[21:])
	if attributes&(attrTransactional|attrControl) != 0 {
		return false, nil
	}
	s.plain.Reset(b[batchHeader:])
	s.body = &s.plain
	if c := compress.Compression(attributes & attrCompression); c != compress.None {
		d, err := decompress(c, &s.plain)
		if err != nil {
			return false, errUnreadable
		}
		if d == nil {
			return false, nil
		}
		s.closer = d
		if s.buf == nil {
			s.buf = bufio.NewReaderSize(d, chunk1)
		} else {
			s.buf.Reset(d)
		}
		s.body = s.buf
	}
	s.left = int32(binary.BigEndian.Uint32(b[57:]))
	return false, nil
}

// read reads the next record of the batch; p is nil when it is no relay's live record.
func (s *recordSet) read() (p *published, offset int64, err error) {
	n, err := binary.ReadVarint(s.body)
	if err != nil || n < 0 {
		return nil, 0, errUnreadable
	}
	const head = 32 // enough for its offset, which is all that counts of one that is too large
	keep := n
	if n > int64(s.most) {
		keep = min(n, head)
	}
	if int64(cap(s.record)) < keep {
		s.record = make([]byte, keep)
	}
	s.record = s.record[:keep]
	if _, err := io.ReadFull(s.body, s.record); err != nil {
		return nil, 0, errUnreadable
	}
	if _, err := io.CopyN(io.Discard, s.body, n-keep); err != nil {
		return nil, 0, errUnreadable
	}
	d := parser{rest: s.record}
	delta := recordDelta(&d)
	offset = s.base + delta
	if d.bad {
		return nil, 0, errUnreadable
	}
	if keep < n {
		return nil, offset, nil
	}
	live := s.found.parse(&d)
	if d.bad {
		return nil, 0, errUnreadable
	}
	if !live {
		return nil, offset, nil
	}
	s.found.offset = offset
	return &s.found, offset, nil
}

// recordDelta reads a record's beginning up to its offset delta, which it returns.
func recordDelta(d *parser) int64 {
	d.skip(1)  // attributes
	d.varint() // timestamp delta
	return d.varint()
}

// parse reads a record behind its offset delta. It reports whether the record is live.
func (r *published) parse(d *parser) (live bool) {
	*r = published{key: d.bytes(), value: d.bytes()}
	for n := d.varint(); n > 0 && !d.bad; n-- {
		name, value := d.bytes(), d.bytes()
		switch string(name) {
		case "id", "ce_id":
			r.id = value
		case "relay_position":
			source, position, err := outbox.ParsePosition(string(value))
			if err == nil {
				r.source, r.position, live = source, position, true
			}
		case "relay_replay":
			return false
		}
	}
	return live
}

// same reports whether two records are the same event.
func (r *published) same(o *published) bool {
	return r.position == o.position && bytes.Equal(r.id, o.id) && bytes.Equal(r.key, o.key) &&
		bytes.Equal(r.value, o.value) && (r.value == nil) == (o.value == nil)
}
