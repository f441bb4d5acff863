package doctor

import (
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/internal/state"
)

// Status is what a check found.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // it works, and may come to hurt
	Fail Status = "fail" // the relay cannot run, or would lose or halt
	Skip Status = "skip" // not looked at
)

// Check is one line of the report. Its fields are API.
type Check struct {
	Section string   `json:"section"`
	Name    string   `json:"name"`
	Status  Status   `json:"status"`
	Seen    string   `json:"seen"`
	Fix     string   `json:"fix,omitempty"` // what to do, in words
	Run     []string `json:"run,omitempty"` // what to run, in order: SQL, which ends with a semicolon, or a command
}

// Report is everything that was found. Its fields are API.
type Report struct {
	Status Status  `json:"status"` // the worst: fail, warn or ok
	OK     int     `json:"ok"`
	Warn   int     `json:"warn"`
	Fail   int     `json:"fail"`
	Skip   int     `json:"skip"`
	Checks []Check `json:"checks"`
}

func (r *Report) add(c Check) {
	r.Checks = append(r.Checks, c)
	switch c.Status {
	case OK:
		r.OK++
	case Warn:
		r.Warn++
	case Fail:
		r.Fail++
	case Skip:
		r.Skip++
	}
	switch {
	case r.Fail > 0:
		r.Status = Fail
	case r.Warn > 0:
		r.Status = Warn
	default:
		r.Status = OK
	}
}

// Find returns the checks of a name.
func (r *Report) Find(section, name string) (found []Check) {
	for _, c := range r.Checks {
		if c.Section == section && c.Name == name {
			found = append(found, c)
		}
	}
	return found
}

// sheet takes what one step finds.
type sheet struct {
	section string
	checks  []Check
}

func (s *sheet) add(status Status, name, fix string, run []string, format string, args ...any) {
	s.checks = append(s.checks, Check{Section: s.section, Name: name, Status: status, Seen: fmt.Sprintf(format, args...), Fix: fix, Run: run})
}

// fix is what to do about a finding.
type fix struct {
	words string
	run   []string
}

func do(words string, run ...string) fix { return fix{words, run} }

func (s *sheet) ok(name, format string, args ...any) { s.add(OK, name, "", nil, format, args...) }

func (s *sheet) warn(name string, f fix, format string, args ...any) {
	s.add(Warn, name, f.words, f.run, format, args...)
}

func (s *sheet) fail(name string, f fix, format string, args ...any) {
	s.add(Fail, name, f.words, f.run, format, args...)
}

// broken tells of an error: one that names a state as the relay would, another one as it is.
func (s *sheet) broken(name string, err error) {
	if e := state.Of(err); e != nil {
		words, run := splitHint(e.Hint)
		s.add(Fail, name, words, run, "%s", e.Error())
		return
	}
	hint := ""
	var hinter interface{ Hint() string }
	if errors.As(err, &hinter) {
		hint = hinter.Hint()
	}
	s.add(Fail, name, hint, nil, "%s", err.Error())
}

// decide is ok, or what is wrong.
func (s *sheet) decide(name string, err error, format string, args ...any) {
	if err != nil {
		s.broken(name, err)
		return
	}
	s.ok(name, format, args...)
}

// failed reports whether a check of the step failed.
func (s *sheet) failed() bool {
	for _, c := range s.checks {
		if c.Status == Fail {
			return true
		}
	}
	return false
}
