package testenv

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Majors returns the major versions of PostgreSQL that a test of what differs between them runs on: all that are
// supported, with -short the oldest and the newest. Where RELAY_TEST_POSTGRES_MAJOR or RELAY_TEST_POSTGRES_URL names
// one, that one alone, as 0.
func Majors(tb testing.TB) []int {
	tb.Helper()
	switch {
	case os.Getenv(envPostgresMajor) != "" || os.Getenv(envPostgresURL) != "":
		return []int{0}
	case testing.Short():
		return []int{14, 18}
	}
	return []int{14, 15, 16, 17, 18}
}

// OnMajor makes the servers of this test and of its subtests be of a major version wherever they do not ask for one
// themselves; 0 changes nothing. So a test can run on several versions without knowing of it.
func OnMajor(tb testing.TB, major int) {
	tb.Helper()
	if major == 0 {
		return
	}
	name := tb.Name()
	shared.mu.Lock()
	shared.majors[name] = major
	shared.mu.Unlock()
	tb.Cleanup(func() {
		shared.mu.Lock()
		delete(shared.majors, name)
		shared.mu.Unlock()
	})
}

// EachMajor runs a subtest on each of Majors, side by side.
func EachMajor(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for _, major := range Majors(t) {
		name := "configured"
		if major != 0 {
			name = strconv.Itoa(major)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			OnMajor(t, major)
			test(t)
		})
	}
}

// majorOf is what OnMajor said of the test or of one that it is part of; 0: nothing.
func (p *process) majorOf(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if major, ok := p.majors[name]; ok {
			return major
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return 0
		}
		name = name[:i]
	}
}
