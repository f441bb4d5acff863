package kafkaserver_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

// One broker goes through its whole life: starting one takes seconds.
func TestBroker(t *testing.T) {
	needBroker(t)
	dir := t.TempDir()
	b, err := kafkaserver.Start(t.Context(), kafkaserver.Config{Dir: dir, Settings: map[string]string{"message.max.bytes": "5000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	brokers, pid := b.Brokers(), b.PID()
	createTopic(t, brokers, "t")
	produce(t, brokers, "t", "one")

	t.Run("settings", func(t *testing.T) {
		var tooLarge error = kerr.MessageTooLarge
		record := &kgo.Record{Topic: "t", Value: make([]byte, 10_000)}
		if err := client(t, brokers, kgo.ProducerBatchMaxBytes(20_000), kgo.ProducerBatchCompression(kgo.NoCompression())).ProduceSync(t.Context(), record).FirstErr(); !errors.Is(err, tooLarge) {
			t.Errorf("10 000 bytes with message.max.bytes=5000: got error %v, want %v", err, tooLarge)
		}
		record = &kgo.Record{Topic: "never-made", Value: []byte("a")}
		if err := client(t, brokers, kgo.UnknownTopicRetries(0)).ProduceSync(t.Context(), record).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
			t.Errorf("topic that was never made: got error %v, want %v", err, kerr.UnknownTopicOrPartition)
		}
	})

	t.Run("pause", func(t *testing.T) {
		if err := b.Pause(); err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		go func() { _, err := kadm.NewClient(client(t, brokers)).ListTopics(t.Context()); answered <- err }()
		select {
		case err := <-answered:
			t.Errorf("a paused broker answered: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		if err := b.Continue(); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Errorf("after Continue: %v", err)
		}
		produce(t, brokers, "t", "two")
	})

	t.Run("kill", func(t *testing.T) {
		if err := b.Pause(); err != nil { // a paused one can be killed
			t.Fatal(err)
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		if b.PID() != 0 || alive(pid) {
			t.Errorf("pid %d, alive %v after Kill", b.PID(), alive(pid))
		}
		start := time.Now()
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("up %v after kill -9", time.Since(start).Round(time.Millisecond))
		expectLeaders(t, brokers, "t", 2)
		expectTopic(t, brokers, "t", "one", "two")
		produce(t, brokers, "t", "three")
	})

	t.Run("stop", func(t *testing.T) {
		if err := b.Pause(); err != nil { // a paused one can be stopped
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []func() error{b.Pause, b.Continue, b.Kill} {
			if err := f(); err != nil {
				t.Errorf("on a stopped broker: %v", err)
			}
		}
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectTopic(t, brokers, "t", "one", "two", "three")
	})

	t.Run("close", func(t *testing.T) {
		pid := b.PID()
		for range 2 {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if alive(pid) {
			t.Errorf("process %d lives after Close", pid)
		}
		if err := b.Restart(t.Context()); !errors.Is(err, kafkaserver.ErrClosed) {
			t.Errorf("restart: got error %v, want %v", err, kafkaserver.ErrClosed)
		}
		if _, err := os.Stat(b.LogPath()); err != nil {
			t.Errorf("a caller's directory must be kept: %v", err)
		}
	})
}

func TestStart_fails(t *testing.T) {
	needBroker(t)
	t.Parallel()
	t.Run("bad setting", func(t *testing.T) {
		b, err := kafkaserver.Start(t.Context(), kafkaserver.Config{Settings: map[string]string{"num.io.threads": "many"}})
		if err == nil {
			b.Close()
			t.Fatal("started")
		}
		if !strings.Contains(err.Error(), "num.io.threads") {
			t.Errorf("got error %q, want one that names the setting", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
		defer cancel()
		if _, err := kafkaserver.Start(ctx, kafkaserver.Config{}); !errors.Is(err, cause) {
			t.Errorf("got error %v, want %v", err, cause)
		}
	})
}

// A broker dies with its parent.
func TestStart_parent_dies(t *testing.T) {
	needBroker(t)
	t.Parallel()
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		t.Skip("skipped: only Linux tells a child of its parent's death")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), envParent+"=1", "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !alive(pid) {
		t.Errorf("parent said %q, want the id of a process", line)
	}
	cmd.Process.Kill()
	cmd.Wait()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		return !alive(pid), "broker lives on without its parent"
	})
}

// expectLeaders asks once: a broker that has started has nothing left to wait for.
func expectLeaders(t *testing.T, brokers []string, topic string, want int) {
	t.Helper()
	topics, err := kadm.NewClient(client(t, brokers)).ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	led := 0
	for _, p := range topics[topic].Partitions {
		if p.Err == nil && p.Leader >= 0 {
			led++
		}
	}
	if led != want {
		t.Errorf("topic %q: %d partitions have a leader, want %d", topic, led, want)
	}
}

// alive reports whether a process runs; one that has ended and was not awaited does not.
func alive(pid int) bool {
	if stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); err == nil {
		return !strings.Contains(string(stat), ") Z ")
	}
	return syscall.Kill(pid, 0) == nil
}
