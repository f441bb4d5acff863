package testenv

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

const (
	envPostgresURL   = "RELAY_TEST_POSTGRES_URL"
	envPostgresMajor = "RELAY_TEST_POSTGRES_MAJOR"
	envKafkaBrokers  = "RELAY_TEST_KAFKA_BROKERS"
	envRequire       = "RELAY_TEST_REQUIRE"
)

// startTimeout bounds the start of a server, including a first download on a slow line.
const startTimeout = 3 * time.Minute

// shared holds what one test process shares. It is the package's one global: go test gives tests no other
// place to share servers in.
var shared = process{servers: map[string]*server{}, majors: map[string]int{}}

type process struct {
	// mu guards the fields below; it is not held while a server starts.
	mu      sync.Mutex
	running bool // within Main
	servers map[string]*server
	majors  map[string]int // by the name of a test, see OnMajor
}

// server is a shared server, or the reason why it does not run.
type server struct {
	once  sync.Once
	value any
	err   error
	close func() error
}

// Main runs the tests of a package and then ends the servers they shared. It returns the exit code for
// os.Exit.
func Main(m *testing.M) int {
	shared.mu.Lock()
	shared.running = true
	shared.mu.Unlock()
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: end shared servers:", err)
		return max(code, 1)
	}
	return code
}

func (p *process) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
	var errs []error
	for _, s := range p.servers {
		if s.close != nil {
			errs = append(errs, s.close())
		}
	}
	clear(p.servers)
	return errors.Join(errs...)
}

// share returns the shared server of a name, started by the first who asks.
func share[S any](tb testing.TB, name string, start func() (S, func() error, error)) (S, error) {
	tb.Helper()
	shared.mu.Lock()
	if !shared.running {
		shared.mu.Unlock()
		tb.Fatal("testenv: shared servers need func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }")
	}
	s := shared.servers[name]
	if s == nil {
		s = &server{}
		shared.servers[name] = s
	}
	shared.mu.Unlock()

	s.once.Do(func() { s.value, s.close, s.err = start() })
	if s.err != nil {
		var none S
		return none, s.err
	}
	return s.value.(S), nil
}

// Require skips the test for want of what reason names, or fails it when RELAY_TEST_REQUIRE=1, so that a
// machine that should have everything cannot pass by skipping.
func Require(tb testing.TB, reason string) {
	tb.Helper()
	if required() {
		tb.Fatalf("%s=1: %s", envRequire, reason)
	}
	tb.Skip("skipped: " + reason)
}

func required() bool { return os.Getenv(envRequire) == "1" }

// Eventually calls check until it is true, and fails the test with its last words when that takes longer than
// within.
func Eventually(tb testing.TB, within time.Duration, check func() (ok bool, why string)) {
	tb.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, why := check()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", within, why)
		}
		<-tick.C
	}
}
