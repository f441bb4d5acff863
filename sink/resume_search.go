package sink

import (
	"context"
	"errors"
	"math"

	"github.com/outboxrelay/relay/outbox"
)

// partitionLog is a partition as it can be read back.
type partitionLog interface {
	// bounds returns the offsets of the first record and behind the last one.
	bounds(ctx context.Context) (start, end int64, err error)
	// read returns whole batches, beginning with the one that has the offset or the first one after it, about
	// most bytes of them; a last one may be cut. It returns errOutOfRange for an offset that is not there. The
	// answer may lie in buf; after an error nobody may use buf again, for a request that was given up may.
	read(ctx context.Context, offset int64, most int, buf []byte) ([]byte, error)
}

// Errors of reading back that trying again does not change.
var (
	errOutOfRange = errors.New("the offset is not in the log")
	errUndecided  = errors.New("the end of the log did not tell where to resume")
)

// How the search reads.
const (
	searchMost   = 64 << 20  // bytes of one partition; what they do not tell is undecided
	searchFetch  = 128 << 10 // bytes asked for at a time
	searchWindow = 16        // offsets of the first window from the end, each next one four times as many
	searchNear   = 64        // offsets that are walked rather than halved
)

// cursor walks through the live records of one owner.
type cursor struct {
	owner
	log    partitionLog
	offset int64 // of the next record to look at
	set    recordSet
	loaded bool  // set holds what was read at asked
	asked  int64 // offset
	left   int64 // bytes the search may still read
	buf    []byte
	pinned int64 // one more than the offset to look back from; 0: from the log's end
}

// owner says which records are ours.
type owner struct {
	source string
	most   int // bytes of a record
}

// seek goes to an offset.
func (c *cursor) seek(offset int64) {
	c.drop()
	c.offset = offset
}

// drop lets go of what has been read ahead.
func (c *cursor) drop() {
	c.set.drop()
	c.loaded = false
}

// held is roughly how much memory the cursor keeps.
func (c *cursor) held() int { return cap(c.buf) + c.set.held() }

// next returns the next record of the source below end, nil when there is none.
func (c *cursor) next(ctx context.Context, end int64, fetch int) (*published, error) {
	for c.offset < end {
		p, passed, err := c.set.next()
		if err != nil {
			return nil, err
		}
		// A fetch answers with the whole batch: what lies before the offset has been seen.
		old := p != nil && p.offset < c.offset
		c.offset = max(c.offset, passed)
		switch {
		case old:
		case p != nil && p.offset >= end:
			return nil, nil
		case p != nil && p.source == c.source:
			return p, nil
		case p == nil:
			if c.offset >= end {
				return nil, nil
			}
			if c.loaded && c.offset == c.asked {
				return nil, errUnreadable // the answer did not have what was asked for
			}
			if c.left <= 0 {
				return nil, errUndecided
			}
			buf := c.buf
			c.buf = nil
			raw, err := c.log.read(ctx, c.offset, fetch, buf)
			if err != nil {
				return nil, err
			}
			c.buf = raw
			if len(raw) == 0 {
				// The end is known to be there: a leader that has just come does not show it yet.
				return nil, errNotYet
			}
			c.loaded, c.asked = true, c.offset
			c.left -= int64(len(raw))
			c.set.load(raw)
		}
	}
	return nil, nil
}

var errNotYet = errors.New("the broker does not show the end of the log yet")

// findTail looks for what an earlier session has published of what this one will be given from floor on. It
// returns nil when there is nothing, and errUndecided when searchMost bytes do not tell.
func (c *cursor) findTail(ctx context.Context, floor outbox.Position) (*tail, error) {
	start, end, err := c.log.bounds(ctx)
	if err != nil {
		return nil, err
	}
	if c.pinned > 0 {
		end = min(end, c.pinned-1)
	}
	c.set.most, c.left = c.most, searchMost
	last, at, err := c.last(ctx, start, end)
	if err != nil || at < 0 || last.Compare(floor) < 0 {
		c.drop()
		return nil, err
	}
	from, err := c.first(ctx, start, at, floor)
	if err != nil {
		c.drop()
		return nil, err
	}
	c.seek(from)
	c.left = math.MaxInt64
	return &tail{cursor: c, end: at + 1, last: last}, nil
}

// last returns position and offset of the last record, reading backwards in growing windows; offset -1 when there
// is none.
func (c *cursor) last(ctx context.Context, start, end int64) (last outbox.Position, offset int64, err error) {
	offset = -1
	for window := int64(searchWindow); end > start && offset < 0; window *= 4 {
		from := max(start, end-window)
		c.seek(from)
		for {
			p, err := c.next(ctx, end, searchFetch)
			if err != nil {
				return last, -1, err
			}
			if p == nil {
				break
			}
			last, offset = p.position, p.offset
		}
		end = from
	}
	return last, offset, nil
}

// first returns an offset from which the records up to at have every one that is not below floor, or none that is
// below: positions rise from run to run of the log only, so there may be several such offsets, and each is as good.
func (c *cursor) first(ctx context.Context, start, at int64, floor outbox.Position) (int64, error) {
	low, high := start, at // below low a record is below floor, from high on one is not
	stride := int64(searchNear)
	for high-low > searchNear {
		// First backwards in growing strides: what is wanted is near the end, and the rest of the log may be cold.
		mid := low + (high-low)/2
		if stride > 0 && at-stride > mid {
			mid, stride = at-stride, 4*stride
		} else {
			stride = 0
		}
		c.seek(mid)
		p, err := c.next(ctx, high, searchFetch)
		switch {
		case err != nil:
			return 0, err
		case p != nil && p.position.Compare(floor) < 0:
			low = p.offset + 1
		default:
			high = mid
		}
	}
	return low, nil
}
