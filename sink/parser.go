package sink

import "encoding/binary"

// parser reads bytes that somebody else has written. What it cannot read it marks, once and for all, and answers
// with zeros.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) take(n int) []byte {
	if n < 0 || n > len(p.rest) || p.bad {
		p.bad = true
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) skip(n int) { p.take(n) }

func (p *parser) int16() int16 {
	if b := p.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (p *parser) int32() int32 {
	if b := p.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.bad = true
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

// bytes reads what a varint of its length leads; nil is null.
func (p *parser) bytes() []byte {
	n := p.varint()
	if n == -1 || p.bad {
		return nil
	}
	if n < 0 || n > int64(len(p.rest)) {
		p.bad = true
		return nil
	}
	return p.take(int(n))
}
