package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

func TestProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	r.doc.Kafka = nil
	answer := state.Status{}
	answers := false
	p := &r.doc.Process
	p.Ask = func(context.Context) (state.Status, bool) { return answer, answers }
	p.Bind = func(context.Context) error { return errors.New("address already in use") }
	for _, f := range []struct {
		name, check string
		change      func()
		want        doctor.Status
		says        string
	}{
		{"little for Go", "GOMEMLIMIT", func() { p.GoLimit = 10 << 20 }, doctor.Warn, "10.0 MiB"},
		{"enough for Go", "GOMEMLIMIT", func() { p.GoLimit = 100 << 20 }, doctor.OK, "100.0 MiB"},
		{"small container", "memory limit", func() { p.Limit = 32 << 20 }, doctor.Warn, "32.0 MiB"},
		{"large container", "memory limit", func() { p.Limit = 1 << 30 }, doctor.OK, "1.0 GiB"},
		{"port in use", "admin listener", func() {}, doctor.Fail, "already in use"},
		{"streaming", "admin listener", func() { answers, answer = true, state.Status{State: state.Streaming} }, doctor.OK, "streaming"},
		{"unreachable", "admin listener", func() { answer = state.Status{State: state.BrokerUnreachable, Reason: "no broker", Hint: "look"} }, doctor.Warn, "no broker"},
		{"halted", "admin listener", func() { answer = state.Status{State: state.Halted, Reason: "event 1", Hint: "look"} }, doctor.Fail, "event 1"},
	} {
		f.change()
		if c := worst(r.examine(), "Process", f.check); c.Status != f.want || !strings.Contains(c.Seen, f.says) {
			t.Errorf("%s: %+v", f.name, c)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := doctor.Report{Status: doctor.Fail, OK: 1, Fail: 1, Checks: []doctor.Check{
		{Section: "PostgreSQL", Name: "version", Status: doctor.OK, Seen: "PostgreSQL 18"},
		{Section: "Slot", Name: "slot", Status: doctor.Fail, Seen: "it has an \x1b[31m escape", Fix: "do this:", Run: []string{"SELECT 1;"}},
		{Section: "Slot", Name: "one", Status: doctor.Skip, Seen: "not looked at"},
		{Section: "Slot", Name: "two", Status: doctor.Skip, Seen: "not looked at"},
	}}
	var plain, colour strings.Builder
	if err := errors.Join(r.Print(&plain, false), r.Print(&colour, true)); err != nil {
		t.Fatal(err)
	}
	const want = `PostgreSQL
  ok    version  PostgreSQL 18

Slot
  fail  slot     it has an ?[31m escape
        -> do this:
           SELECT 1;
  skip  one, two  not looked at

1 ok, 0 to look at, 1 failed
`
	if plain.String() != want {
		t.Errorf("got\n%s\nwant\n%s", plain.String(), want)
	}
	if !strings.Contains(colour.String(), "\x1b[31;1mfail\x1b[0m") {
		t.Errorf("got %q", colour.String())
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const keys = `{"status":"fail","ok":1,"warn":0,"fail":1,"skip":0,"checks":[{"section":"PostgreSQL","name":"version","status":"ok","seen":"PostgreSQL 18"},{"section":"Slot","name":"slot","status":"fail","seen":"it has an \u001b[31m escape","fix":"do this:","run":["SELECT 1;"]},{"section":"Slot","name":"one","status":"skip","seen":"not looked at"},{"section":"Slot","name":"two","status":"skip","seen":"not looked at"}]}`
	if string(b) != keys {
		t.Errorf("got %s", b)
	}
}
