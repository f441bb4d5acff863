package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const tail = " S 1 1 1 0 -1 4194304 500 0 0 0 1234 66 0 0 20 0 9 0 100 0 0"
	for _, name := range []string{"(relay)", "(a b)", "(a) (b)", "(: ) S 1)"} {
		got, err := parseStat([]byte("42 " + name + tail))
		if want := 13 * time.Second; err != nil || got != want {
			t.Errorf("name %q: got %v, %v, want %v", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "42 relay S 1", "42 (relay", "42 (relay) S 1 2 3", "42 (relay)" + strings.Replace(tail, "1234", "x", 1)} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("parseStat(%q) = %v, want an error", bad, got)
		}
	}
}

func TestParsePeak(t *testing.T) {
	t.Parallel()
	got, err := parsePeak("Name:\trelay\nVmPeak:\t 999 kB\nVmHWM:\t   24576 kB\nVmRSS:\t 1 kB\n")
	if err != nil || got != 24<<20 {
		t.Errorf("got %d, %v, want %d", got, err, 24<<20)
	}
	if got, err := parsePeak("Name:\tkthreadd\n"); err == nil {
		t.Errorf("a kernel thread has a peak of %d", got)
	}
}

func TestParseMachine(t *testing.T) {
	t.Parallel()
	got, err := parseMachine("cpu  100 20 30 5000 700 8 2 9 40 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if want := 1600 * time.Millisecond; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := parseMachine("intr 1 2 3\n"); err == nil {
		t.Errorf("no cpu line: got %v, want an error", got)
	}
}

// The kernel that runs this writes what is read here.
func TestProc_Self(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("skipped: this system has no /proc, so the bench does not run on it")
	}
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for after := before; after < before+2*tick; { // burning time is the point
		if after, err = cpuOf(os.Getpid()); err != nil || time.Now().After(deadline) {
			t.Fatalf("CPU time went from %v to %v, %v", before, after, err)
		}
	}
	if peak, err := peakRSSOf(os.Getpid()); err != nil || peak < 1<<20 {
		t.Errorf("peak memory %d, %v", peak, err)
	}
	if used, err := machineCPU(); err != nil || used < before {
		t.Errorf("the machine used %v, this process %v, %v", used, before, err)
	}
}
