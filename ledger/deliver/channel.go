package deliver

import (
	"context"
	"os"

	"github.com/outboxrelay/relay/ledger"
)

// Delivery is one delivery to make: one event to one recipient on one channel. What it holds is personal data; it
// belongs in no log and in no error.
type Delivery struct {
	Key     ledger.Key
	Event   Event
	Attempt int // 1 is the first
	// ProviderKey is the same at every attempt. A provider that takes an idempotency key gets it.
	ProviderKey string
	// Fields are the rule's templates for this channel, executed. A field that is a mapping is a JSON object here.
	Fields map[string]string
}

// Channel makes an effect outside of the database: a mail, a request, a push. It is used by several goroutines at once.
//
// Send returns the provider's reference, which may be empty, and nil when the effect happened. Its error says what is
// known of the effect:
//
//   - ledger.Permanent(err): it did not happen and never will; the delivery is dead, and somebody looks at it.
//   - ledger.Ambiguous(err): it may have happened; the channel's on_uncertain decides. A timeout after the request
//     was sent is ambiguous.
//   - ledger.RetryAfter(d, err): it did not happen, and the provider asks for a pause.
//   - any other: it did not happen; tried again after the channel's backoff.
//
// ctx ends when the right to act does; a Send that goes on after that risks a second effect. The ledger stores the
// error's text where operators read it, so it names no recipient. An example in whole:
//
//	func smsKind() Kind {
//		return Kind{
//			Name:     "sms",
//			Fields:   []Field{{Name: "text", Required: true}},
//			Settings: []Setting{{Name: "endpoint", Required: true}},
//			New: func(s Settings) (Channel, error) { return &sms{endpoint: s["endpoint"]}, nil },
//		}
//	}
//
//	type sms struct{ endpoint string }
//
//	func (s *sms) Send(ctx context.Context, d Delivery) (string, error) {
//		ref, status, err := post(ctx, s.endpoint, d.ProviderKey, d.Key.Recipient, d.Fields["text"])
//		switch {
//		case err != nil:
//			return "", err // a failed dial is retried, what was cut short is ambiguous: ledger knows both
//		case status == http.StatusTooManyRequests:
//			return "", ledger.RetryAfter(time.Minute, errors.New("the provider asks for a pause"))
//		case status/100 == 4:
//			return "", ledger.Permanent(fmt.Errorf("the provider refused it: status %d", status))
//		case status/100 != 2:
//			return "", ledger.Ambiguous(fmt.Errorf("the provider failed: status %d", status))
//		}
//		return ref, nil
//	}
//
// Give the kind to Kinds' result and to ParseRules, and write one file channel_<name>.go.
type Channel interface {
	Send(ctx context.Context, d Delivery) (ref string, err error)
}

// Prober is implemented by a Channel whose provider can be asked what became of an effect, for on_uncertain: probe.
// The errors of Probe leave the delivery uncertain.
type Prober interface {
	Probe(ctx context.Context, r ledger.Reservation) (ledger.Verdict, error)
}

// Writer makes an effect that is a row of the ledger's own database. Write is called in the transaction that records
// the delivery, after eligibility was asked in it, and only if the delivery is to be made: exactly once. Nothing but
// database work belongs in it. Errors: as Channel.Send; all roll back.
type Writer interface {
	Write(ctx context.Context, tx ledger.DBTX, d Delivery) error
}

// Kind is what a channel can be: what a rules file may say about it, and how it is made.
type Kind struct {
	Name     string    // channels.<name>.kind in the file; the channel's own name stands for it
	Fields   []Field   // the templates that a rule gives it
	Settings []Setting // keys under channels.<name> beside those of every channel
	After    string    // the kind of channel that it has to follow; empty: any, or none
	Harmless bool      // a second effect adds nothing: on_uncertain is resend unless the file says otherwise
	// Check, if set, refuses what a rule gives the channel; given tells whether it has a template for a field.
	Check func(s Settings, given func(field string) bool) error
	// Exactly one of these. New opens nothing: what is wrong with the settings is told at the start.
	New       func(Settings) (Channel, error)
	NewWriter func(Settings) (Writer, error)
}

// Field is a template of a rule's channel.
type Field struct {
	Name     string
	Required bool
	Object   bool // a mapping of templates, which becomes a JSON object of strings
	HTML     bool // what is filled in is escaped as its place in the document needs
}

// Setting is a key of a channel of one kind.
type Setting struct {
	Name     string
	Required bool
}

// Settings are a channel's own settings, by name, as written in the file.
type Settings map[string]string

// Kinds returns the kinds of channels that there are. It makes a new slice for callers to add to.
func Kinds(log LineWriter) []Kind {
	return []Kind{databaseKind(), logKind(log), broadcastKind(), webhookKind(os.LookupEnv), mailKind(os.LookupEnv)}
}
