package kafkaserver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fetch runs the script with a Maven of the test's making.
func fetch(t *testing.T, cache, mvn string) (jars string, err error) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "mvn"), []byte("#!/bin/sh\n"+mvn), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../scripts/kafka-fetch")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+cache, "KAFKA_VERSION=0.0")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// The jars come whole or not at all, and once, however many ask at the same time.
func TestFetch(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	want := filepath.Join(cache, "outboxrelay", "kafka-0.0")
	output := `for a; do case $a in -DoutputDirectory=*) out=${a#*=};; esac; done; mkdir "$out"; touch "$out/a.jar"; `

	if jars, err := fetch(t, cache, output+"exit 1"); err == nil {
		t.Errorf("got %q though Maven failed half way", jars)
	}
	if _, err := os.Stat(want); !os.IsNotExist(err) {
		t.Errorf("jars after a failure: got error %v, want none there", err)
	}

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			jars, err := fetch(t, cache, `echo >>"`+cache+`/calls"; `+output+`touch "$out/b.jar"`)
			if err != nil || jars != want {
				t.Errorf("got %q, error %v; want %q", jars, err, want)
			}
		})
	}
	all.Wait()
	found, err := filepath.Glob(filepath.Join(cache, "outboxrelay", "kafka-0.0", "*.jar"))
	if err != nil || len(found) != 2 {
		t.Errorf("got %q, error %v; want 2 jars", found, err)
	}
	if _, err := exec.LookPath("flock"); err == nil {
		if calls, err := os.ReadFile(cache + "/calls"); err != nil || len(calls) != 1 {
			t.Errorf("Maven ran %d times, error %v; want once", len(calls), err)
		}
	}

	if jars, err := fetch(t, cache, "exit 1"); err != nil || jars != want {
		t.Errorf("got %q, error %v; want %q without Maven", jars, err, want)
	}
	left, err := filepath.Glob(filepath.Join(cache, "outboxrelay", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("got %q, error %v; want no work directory left", left, err)
	}
}
