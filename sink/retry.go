package sink

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"

	"github.com/outboxrelay/relay/internal/state"
)

// retrier is what one caller of a Publisher waits with between tries, and says what is wrong through. Whatever it
// raised is cleared when it succeeds. Nothing here is allocated per try.
type retrier struct {
	sink    *Sink
	name    string // of the problem on the board
	subject string // what is being tried, for people
	quiet   bool   // nobody waits for it, so nothing is wrong with the relay when it fails

	fast, slow *backoff.ExponentialBackOff
	timer      *time.Timer
	began      time.Time // of the try under way
	failing    time.Time // when the first of the tries that failed in a row began; zero: the last one succeeded
	raised     state.State
}

func newRetrier(s *Sink, name, subject string) *retrier {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &retrier{
		sink: s, name: name, subject: subject, timer: timer,
		fast: newBackoff(500 * time.Millisecond),
		slow: newBackoff(3 * time.Second),
	}
}

// newBackoff returns one that starts at 20 ms, has jitter and never gives up.
func newBackoff(most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(most), backoff.WithMaxElapsedTime(0))
}

// begin is called before each try: one that hangs has failed from its beginning.
func (r *retrier) begin() { r.began = time.Now() }

// failed notes that the try under way has failed.
func (r *retrier) failed(why reason) {
	r.sink.retries[why].Add(1)
	if r.failing.IsZero() {
		r.failing = r.began
	}
}

// succeeded forgets the failures and clears what was raised.
func (r *retrier) succeeded() {
	if r.failing.IsZero() {
		return
	}
	r.failing = time.Time{}
	r.fast.Reset()
	r.slow.Reset()
	if r.raised != "" {
		r.raised = ""
		r.sink.problems.clear(r.name)
	}
}

// wait says what is wrong, once, and waits until it is time for the next try. It returns only ctx's cause.
func (r *retrier) wait(ctx context.Context, v verdict, err error) error {
	r.failed(v.reason)
	delay := time.Duration(0)
	switch v.class {
	case denied:
		r.raise(state.BrokerDenied, err, hintDenied(err))
		delay = r.sink.cfg.Recheck
	case missing:
		// A broker that has just started may not know its topics yet.
		if time.Since(r.failing) >= r.sink.cfg.UnreachableAfter {
			r.raise(state.TopicMissing, err, hintFault(err, "create the topic, or let the relay do it: kafka.create_topics: true"))
		}
		delay = r.slow.NextBackOff()
	default:
		later, pace := askedFor(err), r.fast
		if v.patient {
			pace = r.slow
		}
		if max(later, time.Since(r.failing)) >= r.sink.cfg.UnreachableAfter {
			hint := hintFault(err, hintUnreachable(v.reason))
			if errors.As(err, new(*hangUpError)) {
				hint = "check the user name and the password, then the brokers"
			}
			r.raise(state.BrokerUnreachable, err, hint)
		}
		delay = max(later, pace.NextBackOff())
	}
	return r.pause(ctx, delay)
}

func (r *retrier) raise(as state.State, err error, hint string) {
	if r.raised == as || r.quiet {
		return
	}
	r.raised = as
	r.sink.problems.raise(r.name, state.Status{State: as, Reason: r.subject + ": " + describe(err), Hint: hint})
}

func (r *retrier) pause(ctx context.Context, d time.Duration) error {
	r.timer.Reset(d)
	select {
	case <-r.timer.C:
		return nil
	case <-r.sink.ended:
		r.timer.Stop()
		return r.sink.endError()
	case <-ctx.Done():
		r.timer.Stop()
		return context.Cause(ctx)
	}
}

func hintUnreachable(r reason) string {
	switch r {
	case reasonCoordinator:
		return "no broker coordinates transactions; on a cluster with fewer brokers than " +
			"transaction.state.log.replication.factor (default 3) set that, and transaction.state.log.min.isr, to what it has"
	case reasonReplicas:
		return "fewer replicas are in sync than the topic's min.insync.replicas asks for"
	case reasonLeader:
		return "the partition has no leader, or its leader is not reachable; look at the brokers"
	}
	return "look at the brokers and at the network between"
}

func hintDenied(err error) string {
	var code kafka.Error
	errors.As(err, &code)
	if hint := hintFault(err, ""); hint != "" {
		return hint
	}
	if errors.As(err, new(*createError)) {
		return "allow Create on the topic, or create it and leave kafka.create_topics out"
	}
	if errors.As(err, new(*readBackError)) && code == kafka.TopicAuthorizationFailed {
		return "allow Read on the topic, or set kafka.resume_check: off and accept repeated events after each kill"
	}
	if hint := hintConnection(err); hint != "" {
		return hint
	}
	switch code {
	case kafka.SASLAuthenticationFailed:
		return "check the user name and the password, and that the user has the mechanism"
	case kafka.UnsupportedSASLMechanism:
		return "the brokers do not offer this SASL mechanism; choose one that they do"
	case kafka.IllegalSASLState:
		return "the brokers want no SASL on this port, or want it first"
	case kafka.TransactionalIDAuthorizationFailed:
		return "allow Write and Describe on TransactionalId relay-* (prefixed)"
	case kafka.ClusterAuthorizationFailed:
		return "allow IdempotentWrite on the cluster"
	case kafka.TopicAuthorizationFailed:
		return "allow Write and Describe on the topic"
	}
	return "check the relay's credentials and access rules on the broker"
}
