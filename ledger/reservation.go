package ledger

import (
	"encoding/json"
	"time"
)

// Reservation is the right to attempt one delivery until the deadline. ID and Fence prove it.
type Reservation struct {
	ID      int64
	Fence   int64
	Attempt int // 1 is the first
	// Deadline is when the holder must stop, by this process's monotonic clock: the moment before the call that
	// gave the lease, plus the lease, less a margin. So neither clock differences nor a slow answer extend it.
	Deadline time.Time
	// ProviderKey is the same for every attempt at this delivery, and another after an operator asked for a second
	// one. Give it to the provider as its idempotency key.
	ProviderKey string
	// Key is what is delivered. Its OccurredAt is zero where the row came from ClaimDue and nobody remembered the
	// event.
	Key Key
	// Content is the remembered event; only of ClaimDue.
	Content Content
	// ProviderRef and FirstEffectAt are what is known of the effect; only of ClaimUncertain. FirstEffectAt is by
	// the database's clock.
	ProviderRef   string
	FirstEffectAt time.Time

	lease    time.Duration
	takeover bool // another holder had it and let its lease end
}

// grant sets what a lease gives. asked is the moment before the call that gave it.
func (l *Ledger) grant(r *Reservation, asked time.Time, leaseMS int64) {
	r.lease = time.Duration(leaseMS) * time.Millisecond
	r.Deadline = asked.Add(r.lease - min(l.cfg.Margin, r.lease/4))
}

// Result is the answer to a request for a reservation.
type Result struct {
	Outcome     Outcome
	Reservation // valid where Outcome is Reserved; of others at most ID, Key and Attempt are set
	// RetryAfter is when to ask again, for AlreadyReserved and NotDue. Zero: not said.
	RetryAfter time.Duration
	// Value is what Complete stored, for AlreadyDelivered.
	Value json.RawMessage
}

// Content is what a retry needs of an event long after its record is gone.
type Content struct {
	Type    string // event type, such as PostPublished
	Payload []byte
	Headers map[string]string
	Source  string // where it came from, for operators, such as a topic, partition and offset
}

// Option changes one call.
type Option func(*options)

type options struct {
	lease     time.Duration
	hash      string
	content   *Content
	notBefore time.Time
	skip      string
}

func collectOptions(list []Option) options {
	var o options
	for _, f := range list {
		f(&o)
	}
	return o
}

// WithLease asks for a lease other than the channel's.
func WithLease(d time.Duration) Option { return func(o *options) { o.lease = d } }

// WithPayloadHash guards against one key used for two contents: PayloadHash makes the hash. The first one is stored,
// and another one is answered PayloadMismatch.
func WithPayloadHash(hash string) Option { return func(o *options) { o.hash = hash } }

// WithContent remembers the event in the transaction that makes its row, so that ClaimDue returns it with the row
// whenever that is tried again.
func WithContent(c Content) Option { return func(o *options) { o.content = &c } }

// WithNotBefore makes rows due at t; only of RegisterBatch.
func WithNotBefore(t time.Time) Option { return func(o *options) { o.notBefore = t } }

// WithSkip records that the recipient is not eligible, and why, instead of delivering; only of Once.
func WithSkip(reason string) Option { return func(o *options) { o.skip = reasonText(reason) } }
