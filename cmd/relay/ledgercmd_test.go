package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
)

// ledgerRig is a fresh database with the ledger in it, made by the commands themselves.
type ledgerRig struct {
	url  string
	conn *pgx.Conn
}

func newLedgerRig(tb testing.TB) *ledgerRig {
	tb.Helper()
	r := &ledgerRig{url: testenv.NewDatabase(tb).URL}
	var err error
	if r.conn, err = pgx.Connect(tb.Context(), r.url); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.conn.Close(context.WithoutCancel(tb.Context())) })
	r.must(tb, "migrate", "up", "--only", "ledger")
	for _, set := range []string{"email", "sms --on-uncertain probe", "push --on-uncertain resend", "database --mode simple", "broadcast --mode simple --after-channel database"} {
		r.must(tb, append([]string{"ledger", "channels", "set"}, strings.Fields(set)...)...)
	}
	return r
}

// run executes a command line that finds the ledger at url, and nothing else.
func (r *ledgerRig) run(tb testing.TB, url string, args ...string) (code int, stdout, stderr string) {
	tb.Helper()
	var o, e bytes.Buffer
	code = testProcess([]string{"RELAY_LEDGER_URL=" + url}, &o, &e).execute(tb.Context(), args)
	return code, o.String(), e.String()
}

func (r *ledgerRig) must(tb testing.TB, args ...string) string {
	tb.Helper()
	code, stdout, stderr := r.run(tb, r.url, args...)
	if code != exitOK || stderr != "" {
		tb.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

func (r *ledgerRig) exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	if _, err := r.conn.Exec(context.WithoutCancel(tb.Context()), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

const post42 = "scheduled-post-published:42"

// seed makes deliveries of one event in every state that there is, each to a recipient named for it, in this order.
func (r *ledgerRig) seed(tb testing.TB) {
	tb.Helper()
	r.exec(tb, `SELECT ledger.remember('', '`+post42+`', 'PostPublished', '{}', '{"relay_position": "a1-b2-c3-d4"}', now(), 'outbox.event.Post/3/1042')`)
	attempt := func(recipient, channel string, steps ...string) {
		tb.Helper()
		r.exec(tb, `SELECT ledger.reserve('', $1, $2, $3, 'worker-1', now())`, post42, "user:"+recipient, channel)
		for _, step := range steps {
			r.exec(tb, `WITH d AS MATERIALIZED (SELECT id, fence FROM ledger.notification_dispatches WHERE recipient = '`+"user:"+recipient+`') SELECT `+step+` FROM d`)
		}
	}
	begin := "ledger.begin_effect(id, fence)"
	attempt("delivered", "email", begin, "ledger.complete(id, fence, 'msg-1')")
	attempt("retried", "email", "ledger.fail(id, fence, 'retry', '421 try later', '1 hour')")
	attempt("silent", "email", begin, "ledger.fail(id, fence, 'ambiguous', 'timeout after DATA')")
	attempt("probed", "sms", begin, "ledger.fail(id, fence, 'ambiguous', 'gateway timeout')")
	attempt("bounced", "email", "ledger.fail(id, fence, 'permanent', 'no such mailbox')")
	attempt("opted-out", "email", "ledger.skip(id, fence, 'unsubscribed')")
	attempt("held", "email")
	attempt("lost", "email")
	attempt("lost-begun", "email", begin)
	attempt("lost-resend", "push", begin)
	attempt("lost-exhausted", "email")
	r.exec(tb, `SELECT ledger.register_batch('', $1, ARRAY['user:due'], 'email', now())`, post42)
	r.exec(tb, `SELECT ledger.register_batch('', $1, ARRAY['user:later'], 'email', now(), now() + interval '3 days')`, post42)
	attempt("blocked", "broadcast")
	attempt("again", "email", begin, "ledger.complete(id, fence, 'msg-2')", "ledger.redrive(id, 'ann', 'customer lost it', true)")
	r.exec(tb, `UPDATE ledger.notification_dispatches SET due_at = now() - interval '1 minute', lease_until = now() - interval '1 minute' WHERE recipient LIKE 'user:lost%'`)
	r.exec(tb, `UPDATE ledger.notification_dispatches SET attempts = max_attempts WHERE recipient = 'user:lost-exhausted'`)
	r.exec(tb, `SELECT ledger.reserve('acme', 'invoice-due:7', '', 'listener:invoice', 'worker-1', now())`)
	r.exec(tb, `UPDATE ledger.notification_dispatches SET due_at = now() + interval '1 hour', lease_until = CASE WHEN lease_until IS NOT NULL THEN now() + interval '1 hour' END
WHERE recipient IN ('', 'user:held', 'user:blocked')`) // however slow the machine is
}

// scrub takes out of an output what no two runs have in common.
func (r *ledgerRig) scrub(s string) string {
	for _, rule := range [][2]string{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "TIME"}, {` \(in [^)]*\)| \([^)]* ago\)`, ""}, {`\b\d+(\.\d+)?(ms|s|m|h)(\d+[ms])*\b`, "SPAN"},
		{`role ` + regexp.QuoteMeta(r.conn.Config().User), "role OWNER"}, {`"role": "` + regexp.QuoteMeta(r.conn.Config().User), `"role": "OWNER`}, {`(\S) {2,}`, "$1  "},
	} {
		s = regexp.MustCompile(rule[0]).ReplaceAllString(s, rule[1])
	}
	return s
}

// golden compares with a file of testdata/ledger; -update rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "ledger", name)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// Every state is explained, with what happens next, for people and as one JSON document.
func TestLedger_show(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	r.seed(t)
	golden(t, "show.txt", r.scrub(r.must(t, "ledger", "show", post42)))
	golden(t, "show.json", r.scrub(r.must(t, "ledger", "show", post42, "--json")))
	golden(t, "list.txt", r.scrub(r.must(t, "ledger", "list")))
	golden(t, "list.json", r.scrub(r.must(t, "ledger", "list", "--json", "--state", "dead,skipped", "--limit", "1")))
	golden(t, "stats.txt", r.scrub(r.must(t, "ledger", "stats")))
	golden(t, "stats.json", r.scrub(r.must(t, "ledger", "stats", "--json")))
	golden(t, "channels.txt", r.must(t, "ledger", "channels"))
	golden(t, "channels.json", r.must(t, "ledger", "channels", "--json"))

	var e ledgerEvent
	if err := json.Unmarshal([]byte(r.must(t, "ledger", "show", post42, "--json")), &e); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range e.Deliveries {
		got[strings.TrimPrefix(d.Recipient, "user:")] = d.Next.Name
	}
	want := map[string]string{
		"delivered": "settled", "retried": "retry", "silent": "needs_person", "probed": "probe", "bounced": "needs_person", "opted-out": "settled", "held": "held",
		"lost": "takeover", "lost-begun": "park", "lost-resend": "takeover", "lost-exhausted": "exhausted", "due": "due", "later": "retry", "blocked": "blocked", "again": "due",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("next (-want +got):\n%s", diff)
	}
}

// What show foretells is what the ledger does.
func TestLedger_nextComesTrue(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	r.seed(t)
	if got := r.must(t, "ledger", "sweep"); got != "1 to uncertain, 1 to dead, 0 to skipped\n" {
		t.Errorf("sweep: %s", got)
	}
	rows, err := r.conn.Query(t.Context(), `SELECT recipient FROM ledger.claim_due('worker-2', ARRAY['email', 'push', 'sms', 'broadcast', 'listener:invoice'], 100)`)
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, c := range claimed {
		got[c] = true
	}
	if diff := cmp.Diff(map[string]bool{"user:lost": true, "user:lost-resend": true, "user:due": true, "user:again": true}, got); diff != "" {
		t.Errorf("claimed (-want +got):\n%s", diff)
	}
	for recipient, want := range map[string]string{"lost-begun": "UNCERTAIN", "lost-exhausted": "DEAD", "lost": "RESERVED"} {
		if out := r.must(t, "ledger", "show", post42, "--recipient", "user:"+recipient); !strings.Contains(out, ": "+want) {
			t.Errorf("%s is not %s: %s", recipient, want, out)
		}
	}
	if out := r.must(t, "ledger", "show", post42, "--recipient", "user:lost"); !strings.Contains(out, ": lease_over") || !strings.Contains(out, "by worker-2") {
		t.Errorf("a takeover is not told: %s", out)
	}
}

// Decisions change what they say, are in the history with who and why, and are refused where they make no sense.
func TestLedger_decisions(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	r.seed(t)
	why := []string{"--actor", "ann", "--reason", "asked the provider"}
	decide := func(args ...string) string {
		t.Helper()
		return r.must(t, append(append([]string{"ledger"}, args...), why...)...)
	}
	if got := decide("resolve", post42, "--recipient", "user:silent", "--verdict", "delivered"); got != "user:silent by email: was uncertain, now delivered\n" {
		t.Errorf("resolve: %s", got)
	}
	if got := decide("resolve", post42, "--verdict", "failed"); got != "user:probed by sms: was uncertain, now failed\n" {
		t.Errorf("resolve of the only one left: %s", got)
	}
	golden(t, "redrive.json", decide("redrive", post42, "--all", "--json"))
	if got := decide("redrive", post42, "--recipient", "user:delivered", "--resend"); got != "user:delivered by email: was delivered, now redriven\n" {
		t.Errorf("resend: %s", got)
	}
	if out := r.scrub(r.must(t, "ledger", "show", post42, "--recipient", "user:delivered")); !strings.Contains(out, "generation 2") ||
		!strings.Contains(out, "redrive_resend, delivered to pending, by ann (role OWNER): asked the provider") || !strings.Contains(out, "1 of generation 1") {
		t.Errorf("show after resend: %s", out)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"resolve", post42, "--verdict", "delivered"}, exitFailed, "none of 15 deliveries is uncertain"},
		{[]string{"resolve", post42, "--verdict", "delivered", "--recipient", "user:held"}, exitFailed, "is reserved, and resolve takes uncertain\nhint: a worker holds it"},
		{[]string{"redrive", post42, "--recipient", "user:silent"}, exitFailed, "is delivered, and redrive takes dead, skipped, uncertain\nhint: to have it made once more on purpose, say redrive --resend"},
		{[]string{"redrive", post42, "--recipient", "user:nobody"}, exitFailed, "the event has no such delivery\nhint: leave out --recipient"},
		{[]string{"redrive", "scheduled-post-published:43"}, exitFailed, "hint: did you mean " + post42 + "?"},
		{[]string{"redrive", "invoice-due:7"}, exitFailed, `hint: tenant "acme" has one: say --tenant acme`},
	} {
		code, _, stderr := r.run(t, r.url, append(append([]string{"ledger"}, tt.args...), why...)...)
		if code != tt.code || !strings.Contains(stderr, tt.says) {
			t.Errorf("%v: exit code %d, want %d: %s", tt.args, code, tt.code, stderr)
		}
	}
}

// Where several deliveries can be meant, nothing is done to any.
func TestLedger_ambiguous(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	r.seed(t)
	before := r.must(t, "ledger", "list", "--json")
	code, _, stderr := r.run(t, r.url, "ledger", "resolve", post42, "--verdict", "dead", "--reason", "x")
	if code != exitUsage || !strings.Contains(stderr, "2 deliveries of the event can be meant") || !strings.Contains(stderr, "--all") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if diff := cmp.Diff(before, r.must(t, "ledger", "list", "--json")); diff != "" {
		t.Errorf("it changed something (-before +after):\n%s", diff)
	}
}

// The pages of a list, one after the other, hold each delivery once; filters hold for all of them.
func TestLedger_list(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	r.seed(t)
	list := func(args ...string) ledgerPage {
		t.Helper()
		var page ledgerPage
		if err := json.Unmarshal([]byte(r.must(t, append([]string{"ledger", "list", "--json"}, args...)...)), &page); err != nil {
			t.Fatal(err)
		}
		return page
	}
	all := list().Deliveries
	if len(all) != 16 {
		t.Fatalf("%d deliveries, want 16", len(all))
	}
	var paged []ledgerLine
	for page := list("--limit", "5"); ; page = list("--limit", "5", "--after", fmt.Sprint(*page.NextAfter)) {
		if paged = append(paged, page.Deliveries...); page.NextAfter == nil {
			break
		}
	}
	if diff := cmp.Diff(all, paged); diff != "" {
		t.Errorf("(-whole +paged):\n%s", diff)
	}
	r.exec(t, `UPDATE ledger.notification_dispatches SET created_at = now() - interval '2 hours' WHERE recipient IN ('user:due', 'user:bounced')`)
	for filter, want := range map[string]int{
		"--state=uncertain": 2, "--state=dead,skipped": 2, "--channel=sms": 1, "--recipient=": 1, "--recipient=user:due": 1, "--event-type=PostPublished": 15,
		"--event-type=Other": 0, "--tenant=acme": 1, "--tenant=": 15, "--older-than=1h": 2, "--older-than=3h": 0, "--older-than=1h --state=dead": 1,
	} {
		if got := list(strings.Fields(filter)...); len(got.Deliveries) != want || got.NextAfter != nil {
			t.Errorf("%s: %d deliveries, want %d", filter, len(got.Deliveries), want)
		}
	}
	if out := r.must(t, "ledger", "list", "--limit", "2"); !strings.HasSuffix(out, "\nthere are more: the same with --after 2\n") {
		t.Errorf("list: %s", out)
	}
}

// Purge shows what it is going to delete, deletes that, and forgets nothing else.
func TestLedger_purge(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	r.seed(t)
	if got := r.must(t, "ledger", "purge", "--dry-run"); got != "nothing is older than its channel's retention\n" {
		t.Errorf("nothing to purge: %s", got)
	}
	r.exec(t, `UPDATE ledger.notification_dispatches SET done_at = done_at - interval '91 days' WHERE done_at IS NOT NULL`)
	r.must(t, "ledger", "channels", "set", "email", "--retention", "92 days")
	r.exec(t, `SELECT ledger.resolve(id, fence, 'dead', 'ann', 'x') FROM ledger.notification_dispatches WHERE channel = 'sms'`)
	r.exec(t, `UPDATE ledger.notification_dispatches SET done_at = now() - interval '91 days' WHERE channel = 'sms'`)
	golden(t, "purge.json", r.scrub(r.must(t, "ledger", "purge", "--dry-run", "--json")))
	if code, _, stderr := r.run(t, r.url, "ledger", "purge"); code != exitUsage || !strings.Contains(stderr, "there is nobody to ask") {
		t.Errorf("purge without a terminal: exit code %d: %s", code, stderr)
	}
	if got := r.must(t, "ledger", "purge", "--yes"); got != "deleted: 1\n" {
		t.Errorf("purge: %s", got)
	}
	if page := r.must(t, "ledger", "list", "--channel", "sms"); page != "no such delivery\n" {
		t.Errorf("left: %s", page)
	}
	r.must(t, "ledger", "channels", "set", "email", "--retention", "default")
	if got := r.must(t, "ledger", "purge", "--yes", "--json"); !strings.Contains(got, `"deleted": 3`) {
		t.Errorf("purge: %s", got)
	}
}

// Settings are set, taken back, refused when they contradict one another, and held after a restore.
func TestLedger_channelsSet(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	out := r.must(t, "ledger", "channels", "set", "email", "webhook", "--lease", "90s", "--max-attempts", "3", "--retention", "0", "--horizon", "0")
	if !strings.Contains(out, "webhook") || strings.Count(out, "1m30s*") != 2 || strings.Count(out, "for ever*") != 2 || strings.Count(out, "none*") != 2 {
		t.Errorf("set: %s", out)
	}
	if out := r.must(t, "ledger", "channels", "set", "email", "--lease", "default"); strings.Contains(out, "1m30s") || !strings.Contains(out, " 3* ") {
		t.Errorf("taken back: %s", out)
	}
	if out := r.must(t, "ledger", "channels", "set", "broadcast", "--after-channel", "none"); strings.Contains(out, "database") {
		t.Errorf("without predecessor: %s", out)
	}
	if out := r.must(t, "ledger", "channels", "set", "--all", "--on-uncertain", "hold"); strings.Contains(out, "probe") || strings.Contains(out, "resend") || strings.Count(out, "hold*") != 6 {
		t.Errorf("all on hold: %s", out)
	}
	before := r.must(t, "ledger", "channels")
	for args, says := range map[string]string{
		"email --retention 1d --horizon 2d": "retention is shorter than horizon\nhint: ", "email --mode strict": "channels_mode_known",
		"email --lease soon": "invalid input syntax", "email --max-attempts 0": "channels_max_attempts_range", "* --lease default": "channels_defaults_whole",
	} {
		code, _, stderr := r.run(t, r.url, append([]string{"ledger", "channels", "set"}, strings.Fields(args)...)...)
		if code != exitFailed || !strings.Contains(stderr, says) {
			t.Errorf("set %s: exit code %d: %s", args, code, stderr)
		}
	}
	if diff := cmp.Diff(before, r.must(t, "ledger", "channels")); diff != "" {
		t.Errorf("what was refused changed something (-before +after):\n%s", diff)
	}
}

// providerKey makes the keys that the ledger's reserve hands out.
func TestProviderKey(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../ledger/testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		ProviderKey []struct {
			Tenant, Recipient, Channel, Want string
			EventKey                         string `json:"event_key"`
			Generation                       int
		} `json:"provider_key"`
	}
	if err := json.Unmarshal(data, &v); err != nil || len(v.ProviderKey) < 5 {
		t.Fatalf("%d vectors, %v", len(v.ProviderKey), err)
	}
	for _, c := range v.ProviderKey {
		if got := providerKey(c.Tenant, c.EventKey, c.Recipient, c.Channel, c.Generation); got != c.Want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{"0s": 0, "59s": 59 * time.Second, "1h5m": 65*time.Minute + 10*time.Second, "47h": 47 * time.Hour, "90 days": 90 * 24 * time.Hour} {
		if got := span(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
