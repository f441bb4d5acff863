package deliver_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger/deliver"
)

// A broadcast signals a row that is there, by its id and nothing else; the same event again signals nothing.
func TestBroadcast(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.rules = strings.NewReplacer("test: {after: database, on_uncertain: resend, backoff: 50ms..1s}", "broadcast: {after: database, backoff: 50ms..1s}",
		"      test:\n        line: \"{{ .data.title }} is out\"", "      broadcast: {}").Replace(r.rules)
	conn, err := r.app.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "LISTEN ledger_notifications"); err != nil {
		t.Fatal(err)
	}
	r.post(42, 3)
	r.exec("UPDATE users SET may_read = false WHERE id = 2")
	r.produce(r.published(42, 1), r.published(42, 2))
	r.run(nil)
	r.eventually("deliveries", r.settled(6))
	var heard []int64
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		n, err := conn.Conn().WaitForNotification(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		id, err := strconv.ParseInt(n.Payload, 10, 64)
		if err != nil {
			t.Errorf("heard %q, which is no id", n.Payload)
		}
		heard = append(heard, id)
	}
	slices.Sort(heard)
	want := one[[]int64](r, "SELECT array_agg(id ORDER BY id) FROM ledger.notifications")
	if len(want) != 2 || !slices.Equal(heard, want) {
		t.Errorf("heard %v, want %v once each", heard, want)
	}
	if got := one[string](r, "SELECT string_agg(state || ' ' || coalesce(provider_ref, '-'), ', ' ORDER BY recipient) FROM ledger.notification_dispatches WHERE channel = 'broadcast' AND state = 'delivered'"); !strings.Contains(got, strconv.FormatInt(want[0], 10)) {
		t.Errorf("the ledger's references are %q", got)
	}
	if got := one[string](r, "SELECT on_uncertain FROM ledger.channels_in_force WHERE channel = 'broadcast'"); got != "resend" {
		t.Errorf("on_uncertain is %s: repeating it adds nothing", got)
	}
}

func TestBroadcast_after(t *testing.T) {
	t.Parallel()
	for channels, want := range map[string]string{
		"  broadcast: {}": "channels.broadcast (line 3 column 14): a channel of kind broadcast comes after one of kind database",
		"  log: {after: database}\n  broadcast: {after: log}":              "channels.broadcast (line 4 column 14): a channel of kind broadcast comes after one of kind database",
		"  signal: {kind: broadcast, after: signal}":                       "or back to itself",
		"  broadcast: {after: database}":                                   "",
		"  signal: {kind: broadcast, after: database, on_uncertain: hold}": "",
	} {
		text := "channels:\n  database: {}\n" + channels + "\nrules:\n  r:\n    event_type: E\n    recipients: SELECT ''\n    eligible: SELECT true, ''\n    channels: {database: {type: t}}\n"
		_, err := deliver.ParseRules([]byte(text), deliver.Kinds(deliver.NewLineWriter(os.Stderr)))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", channels, err, want)
		}
	}
}
