package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/internal/child"
)

// target is what a system is pointed at.
type target struct {
	database string
	dsn      string
	topic    string
	rows     int
	lowDelay bool // favour latency where a system has to choose
	profile  bool // the relay serves its profiles
	admin    string
}

// system is something that reads the slot.
type system struct {
	name string
	// publishes says that rows come out in Kafka. One that does not writes a line when it has received them all.
	publishes bool
	// prepare fetches and builds; an error that wraps errAbsent says why the system cannot be had here.
	prepare func(ctx context.Context, b *bench) error
	command func(b *bench, t *target) (*exec.Cmd, error)
}

// errAbsent marks the reasons for which a system is left out.
var errAbsent = errors.New("absent")

func systems() []system {
	return []system{
		{name: "floor-receive", command: floorCommand("receive")},
		{name: "floor-pipe", publishes: true, command: floorCommand("pipe")},
		{name: "relay", publishes: true, prepare: func(ctx context.Context, b *bench) error { return b.buildRelay(ctx) }, command: relayCommand},
		{name: "debezium", publishes: true, prepare: prepareDebezium, command: debeziumCommand},
		{name: "go-pq-cdc-kafka", publishes: true, prepare: probeModule("github.com/Trendyol/go-pq-cdc-kafka")},
	}
}

// pick returns the systems of the given names and prepares them. Those that cannot be had come back in absent.
func (b *bench) pick(ctx context.Context, names []string) (picked []system, absent map[string]string, err error) {
	absent = map[string]string{}
	for _, name := range names {
		i := slices.IndexFunc(systems(), func(s system) bool { return s.name == name })
		if i < 0 {
			return nil, nil, fmt.Errorf("%w: unknown system %q", errUsage, name)
		}
		s := systems()[i]
		if s.prepare != nil {
			switch err := s.prepare(ctx, b); {
			case errors.Is(err, errAbsent):
				absent[name] = err.Error()
				b.say("%s is left out: %v", name, err)
				continue
			case err != nil:
				return nil, nil, err
			}
		}
		picked = append(picked, s)
	}
	return picked, absent, nil
}

// relayCommand runs the shipped binary with nothing set but where things are.
func relayCommand(b *bench, t *target) (*exec.Cmd, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	t.admin = child.Address(port)
	cmd := exec.Command(b.relay, "run", "--postgres-slot", runSlot, "--postgres-publication", publication,
		"--kafka-brokers", strings.Join(b.kafka.Brokers(), ","), "--route-topic", t.topic,
		"--admin-listen", t.admin, "--admin-pprof="+strconv.FormatBool(t.profile))
	cmd.Env = append(os.Environ(), "RELAY_POSTGRES_URL="+t.dsn)
	return cmd, nil
}

// floorCommand runs this program again, as a floor.
func floorCommand(kind string) func(b *bench, t *target) (*exec.Cmd, error) {
	return func(b *bench, t *target) (*exec.Cmd, error) {
		args := []string{"floor", kind, "-dsn", t.dsn, "-rows", strconv.Itoa(t.rows)}
		if kind == "pipe" {
			linger := "5ms"
			if t.lowDelay {
				linger = "0s"
			}
			args = append(args, "-brokers", strings.Join(b.kafka.Brokers(), ","), "-topic", t.topic, "-linger", linger)
		}
		return exec.Command("/proc/self/exe", args...), nil
	}
}

// probeModule says whether a Go module can be had from the proxy that this machine uses. One that can is still
// absent until somebody writes its part: nothing is measured by guess.
func probeModule(path string) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		cmd := exec.CommandContext(ctx, "go", "list", "-mod=mod", "-m", "-f", "{{.Version}}", path+"@latest")
		cmd.Dir = b.dir.Path // outside of this module, whose go.mod must not change
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if version, err := cmd.Output(); err == nil {
			return fmt.Errorf("%w: module %s %s can be had, but the bench has no part for it", errAbsent, path, strings.TrimSpace(string(version)))
		}
		return fmt.Errorf("%w: module %s cannot be had from the Go module proxy", errAbsent, path)
	}
}
