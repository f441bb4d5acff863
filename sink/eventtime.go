package sink

import "time"

// eventTimes are the timestamps of a batch whose records have times of their own. They are kept apart from those of
// other batches, whose records all have the time when the batch was first sent.
type eventTimes struct {
	timed        bool
	base, latest int64 // in milliseconds: what the records' deltas count from, and the largest
}

// clock places the record's time in the batch.
func (b *Batch) clock(r *record) {
	if len(b.seqs) == 0 {
		b.eventTimes = eventTimes{r.timed, r.time, r.time}
	}
	if b.timed {
		r.since = r.time - b.base
		r.wide = sizeVarint(r.since) - 1
		b.latest = max(b.latest, r.time)
	}
}

// adopt takes over the time of an encoded record of another batch, whose base stays what its delta counts from.
func (b *Batch) adopt(from *Batch, raw []byte) {
	_, since, _ := bodyRaw(raw)
	if len(b.seqs) == 0 {
		b.eventTimes = eventTimes{from.timed, from.base, from.base + since}
	}
	b.latest = max(b.latest, b.base+since)
}

// times returns the base timestamp and the largest, in milliseconds.
func (b *Batch) times() (base, latest int64) {
	if b.timed {
		return b.base, b.latest
	}
	ms := b.Time.UnixMilli()
	return ms, ms
}

// timeOf returns the time of a record from its delta.
func (b *Batch) timeOf(since int64) time.Time {
	base, _ := b.times()
	return time.UnixMilli(base + since)
}
