package deliver_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/ledger/deliver"
)

func parse(text string) (*deliver.Rules, error) {
	return deliver.ParseRules([]byte(text), append(deliver.Kinds(deliver.NewLineWriter(os.Stderr)), newSender().kind(), deliver.Kind{
		Name: "sms", Fields: []deliver.Field{{Name: "text", Required: true}}, Settings: []deliver.Setting{{Name: "endpoint", Required: true}},
		New: func(s deliver.Settings) (deliver.Channel, error) {
			if !strings.HasPrefix(s["endpoint"], "https:") {
				return nil, errors.New("endpoint is not https")
			}
			return newSender(), nil
		},
	}))
}

const goodRules = `channels:
  database: {}
  sms:
    endpoint: https://example.test
    after: database
    on_uncertain: hold
    max_attempts: 3
    backoff: 5s..1h
rules:
  welcome:
    event_type: UserJoined
    recipients: SELECT 'user:' || :aggregate_id
    eligible: SELECT true, ''
    channels:
      sms: {text: "hello {{ .recipient.id }}"}
      database: {type: welcome, data: {a: "{{ .payload.a }}"}}
`

func TestParseRules(t *testing.T) {
	t.Parallel()
	rules, err := parse(goodRules)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, c := range rules.Channels {
		got += fmt.Sprintf("%s after=%s %s %d %v..%v;", c.Name, c.After, c.OnUncertain, c.MaxAttempts, c.BackoffMin, c.BackoffMax)
	}
	for _, c := range rules.Rules[0].Channels { // database first, for sms looks for it
		got += " " + c.Name
	}
	if want := "database after=  0 0s..0s;sms after=database hold 3 5s..1h0m0s; database sms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if rules.UnknownTypes != deliver.Ignore || rules.ForeignRecords != deliver.Park {
		t.Errorf("policies %s and %s", rules.UnknownTypes, rules.ForeignRecords)
	}
}

// Each mistake names its place and what to do.
func TestParseRules_mistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, want string }{
		{"event_type:", "event_typ:", "rules rules.welcome.event_typ (line 11 column 16): unknown key (did you mean event_type?)"},
		{"event_type: UserJoined", "event_type:", "rules rules.welcome.event_type (line 11"},
		{"    eligible: SELECT true, ''\n", "", "eligible is not set (a query that returns one row"},
		{":aggregate_id", ":agregate_id", "has an unknown parameter :agregate_id (did you mean aggregate_id?)"},
		{":aggregate_id", ":recipient", "has an unknown parameter :recipient"},
		{"SELECT 'user:' || :aggregate_id", "SELECT 1; DELETE FROM users", "is more than one statement"},
		{"SELECT 'user:' || :aggregate_id", "''", "rules.welcome.recipients (line 12 column 17): is empty"},
		{"{{ .recipient.id }}", "{{ .recipient.id }", "rules.welcome.channels.sms.text:1: unexpected"},
		{"text: \"hello {{ .recipient.id }}\"", "txt: hello", "unknown key (did you mean text?)"},
		{"{text: \"hello {{ .recipient.id }}\"}", "{}", "text is not set"},
		{"      sms: {", "      smss: {", "is no channel of this file (did you mean sms?)"},
		{"    after: database\n", "    after: databse\n", `channel "sms": after "databse" leads to no channel of this file, or back to itself (did you mean database?)`},
		{"      database: {type: welcome, data: {a: \"{{ .payload.a }}\"}}\n", "", `rule "welcome" uses channel sms, which comes after database, and not database`},
		{"endpoint: https", "endpoint: http", "channels.sms (line 4 column 5): endpoint is not https"},
		{"    endpoint: https://example.test\n", "", "endpoint is not set"},
		{"on_uncertain: hold", "on_uncertain: maybe", `"maybe" is not a policy (use resend, probe or hold)`},
		{"on_uncertain: hold", "on_uncertain: probe", "this kind of channel cannot ask"},
		{"max_attempts: 3", "max_attempts: none", `"none" is not a number from 1 to 1000000`},
		{"backoff: 5s..1h", "backoff: 5s", "is not a range"},
		{"backoff: 5s..1h", "backoff: 5..1h", `"5" is not a duration`},
		{"  database: {}", "  database: {kind: databse}", `"databse" is not a kind of channel (did you mean database?)`},
		{"  database: {}", "  database: {endpoint: x}", "is no setting of a channel of kind database"},
		{"rules:\n", "unknown_types: drop\nrules:\n", `"drop" is not a choice (use ignore or park)`},
		{"channels:\n  database", "channels:\n  database: {}\n  database", "is there twice"},
		{goodRules, "", "is empty"},
		{goodRules, "channels: [", "is not YAML, line 1"},
		{goodRules, "- a", "is not a mapping"},
		{goodRules, "channels: {}", "needs channels and rules"},
		{goodRules, goodRules + "---\na: b\n", "more than one document"},
		{"rules:\n", "rules:\n  other:\n    event_type: UserJoined\n    recipients: SELECT ''\n    eligible: SELECT true, ''\n    channels: {database: {type: x}}\n",
			`rules "other" and "welcome" both deliver UserJoined on channel database`},
	} {
		_, err := parse(strings.Replace(goodRules, c.from, c.to, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q:\n%v\nlacks %q", c.to, c.from, err, c.want)
		}
		if _, ok := errors.AsType[deliver.Mistakes](err); err != nil && !ok {
			t.Errorf("error of type %T", err)
		}
	}
}

// A mistake is not told again as what follows from it.
func TestParseRules_once(t *testing.T) {
	t.Parallel()
	_, err := parse(strings.Replace(goodRules, "eligible: SELECT true, ''", "eligible: SELECT :nobody, ''", 1))
	if ms, _ := errors.AsType[deliver.Mistakes](err); len(ms) != 1 {
		t.Errorf("got %v, want one mistake", err)
	}
}

func TestExampleRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../examples/rules/scheduled-post-published.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(string(text)); err != nil {
		t.Error(err)
	}
}
