package cdc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox"
)

// This file makes events of the stream's messages: it keeps the open transaction, counts its ordinals, and puts rows
// and logical messages into the reader's chunk.

// message takes one message of pgoutput.
func (r *reader) message(kind byte, body []byte) error {
	switch kind {
	case kindBegin:
		m, err := decodeBegin(body)
		if err != nil {
			return err
		}
		if r.inTx {
			return errors.New("decode stream: begin within a transaction")
		}
		r.tx, r.inTx, r.ordinal, r.split = m, true, 0, false
	case kindCommit:
		m, err := decodeCommit(body)
		if err != nil {
			return err
		}
		if !r.inTx || m.commitLSN != r.tx.commitLSN {
			return fmt.Errorf("decode stream: commit at %s does not belong to the open transaction", m.commitLSN)
		}
		r.inTx, r.split = false, false
		r.cur.complete = len(r.cur.events)
		r.watermark.Commit(r.seq, m.endLSN, r.tx.commitTime)
		r.counts.transactions.Add(1)
	case kindRelation:
		m, err := decodeRelation(body)
		if err != nil {
			return err
		}
		return r.describe(m)
	case kindInsert:
		m, err := decodeInsert(body)
		if err != nil {
			return err
		}
		return r.insert(m)
	case kindMessage:
		m, err := decodeMessage(body)
		if err != nil {
			return err
		}
		return r.logical(m)
	default:
		if !harmless(kind) {
			return fmt.Errorf("decode stream: message kind %q is not of protocol version 1", kind)
		}
		r.counts.skipped.Add(1)
	}
	return nil
}

func (r *reader) insert(m insert) error {
	if !r.inTx {
		return errors.New("decode stream: insert outside a transaction")
	}
	r.ordinal++
	layout, known := r.relations[m.relation]
	if !known {
		return fmt.Errorf("decode stream: insert into relation %d, which was not described", m.relation)
	}
	if layout == nil {
		r.counts.skipped.Add(1)
		return nil
	}
	if err := r.makeRoom(len(m.tuple) + layout.room()); err != nil || r.ended {
		return err
	}
	if err := r.cur.add(layout, m, r.position()); err != nil {
		return err
	}
	r.added()
	return nil
}

// describe replaces what is known of a relation. The server describes a table again, before its next row, whenever its
// publication was changed, among other reasons, so what follows waits for a look: rows that were left out meanwhile
// must not be overtaken by it. A table is ours by its name, as it was when the row was written, or
// by its OID: rows that were written while it was called otherwise are its rows.
func (r *reader) describe(rel relation) (err error) {
	r.relations[rel.id] = nil
	i := slices.IndexFunc(r.tables, func(m Mapping) bool { return m.Table.Schema == rel.schema && m.Table.Name == rel.name })
	if i < 0 {
		known, ok := r.oids[rel.id]
		if !ok {
			return nil
		}
		i = known
	}
	if r.relations[rel.id], err = newLayout(rel, &r.tables[i], r.types); err != nil {
		return err
	}
	return r.awaitLook()
}

// logical takes a logical message: an event, if its prefix is one of ours.
func (r *reader) logical(m logicalMessage) error {
	if !m.transactional {
		r.counts.skipped.Add(1) // it was never subject to a commit
		return nil
	}
	if !r.inTx {
		return errors.New("decode stream: transactional message outside a transaction")
	}
	r.ordinal++
	mapping := r.emitted.find(m.prefix)
	if mapping == nil {
		r.counts.skipped.Add(1)
		return nil
	}
	if err := r.makeRoom(messageRoom(m)); err != nil || r.ended {
		return err
	}
	r.emitted.add(r.cur, mapping, m, r.position())
	r.added()
	return nil
}

func (r *reader) position() outbox.Position {
	return outbox.Position{Incarnation: r.incarnation, LSN: r.tx.commitLSN, Ordinal: r.ordinal}
}

// makeRoom hands the chunk over when n more bytes do not fit.
func (r *reader) makeRoom(n int) error {
	if !r.cur.fits(n) {
		if err := r.handOver(); err != nil {
			return err
		}
	}
	if len(r.cur.events) == 0 {
		r.cur.firstSeq = r.seq + 1
	}
	return nil
}

// added completes the event that was just put into the chunk.
func (r *reader) added() {
	r.cur.events[len(r.cur.events)-1].CommitTime = r.tx.commitTime
	r.seq++
	r.counts.events.Add(1)
}
