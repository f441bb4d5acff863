package kafkaserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/child"
)

// DefaultSettings returns the properties a broker starts with unless Config.Settings says otherwise.
func DefaultSettings() map[string]string {
	return map[string]string{
		"auto.create.topics.enable":      "false",
		"num.partitions":                 "4",
		"num.network.threads":            "2",
		"num.io.threads":                 "4",
		"log.segment.delete.delay.ms":    "1000",
		"log.cleaner.dedupe.buffer.size": "16777216", // fits a small heap

		// One node is all the replicas there are.
		"default.replication.factor":                       "1",
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.num.partitions":     "4",
		"group.initial.rebalance.delay.ms":                 "0",

		// A killed node waits for its own registration to expire before it may come back.
		"broker.session.timeout.ms":    "1500",
		"broker.heartbeat.interval.ms": "300",
	}
}

// properties returns the text of the broker's configuration file.
func (b *Broker) properties() string {
	client, controller := child.Address(b.port), child.Address(b.controller)
	all := DefaultSettings()
	maps.Copy(all, map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.quorum.voters":       "1@" + controller,
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      "PLAINTEXT://" + client + ",CONTROLLER://" + controller,
		"advertised.listeners":           "PLAINTEXT://" + client,
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":     "PLAINTEXT",
		"log.dirs":                       b.dataDir(),
	})
	maps.Copy(all, b.cfg.Settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s=%s\n", name, strings.ReplaceAll(all[name], `\`, `\\`))
	}
	return text.String()
}

const logConfig = `status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n%throwable
rootLogger.level=WARN
rootLogger.appenderRefs=out
rootLogger.appenderRef.out.ref=out
`

func (b *Broker) dataDir() string { return filepath.Join(b.dir, "data") }

// start runs the broker and waits until it serves. The caller holds mu or has the broker to itself.
func (b *Broker) start(ctx context.Context) error {
	properties, logging := filepath.Join(b.dir, "server.properties"), filepath.Join(b.dir, "log4j2.properties")
	if err := os.WriteFile(properties, []byte(b.properties()), 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(logging, []byte(logConfig), 0o644); err != nil {
		return fmt.Errorf("write log configuration: %w", err)
	}
	log, err := os.OpenFile(b.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open broker log: %w", err)
	}
	defer log.Close()

	java := func(heap int, args ...string) *exec.Cmd {
		options := append(slices.Clone(b.cfg.JVM), fmt.Sprintf("-Xmx%dm", heap), "-Djava.awt.headless=true",
			"-Djava.net.preferIPv4Stack=true", "-Dlog4j2.configurationFile="+logging, "-cp", filepath.Join(b.jars, "*"))
		cmd := exec.Command("java", append(options, args...)...)
		cmd.Dir = b.dir
		cmd.Stdout, cmd.Stderr = log, log
		return cmd
	}
	if _, err := os.Stat(filepath.Join(b.dataDir(), "meta.properties")); err != nil {
		const clusterID = "b3V0Ym94cmVsYXktdGVzdA" // any base64 of 16 bytes
		format := java(128, "kafka.tools.StorageTool", "format", "--cluster-id", clusterID, "--config", properties)
		if err := child.Run(ctx, format); err != nil {
			return fmt.Errorf("format storage: %w\n%s", err, b.logTail())
		}
	}
	p, err := child.Start(java(b.cfg.HeapMB, "kafka.Kafka", properties), syscall.SIGKILL)
	if err != nil {
		return err
	}
	b.proc.Store(p)
	return b.awaitReady(ctx, p)
}

// awaitReady waits until the broker answers and every partition of it has a leader.
func (b *Broker) awaitReady(ctx context.Context, p *child.Process) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...), kgo.RetryTimeout(time.Second))
	if err != nil {
		return errors.Join(fmt.Errorf("make client: %w", err), b.kill())
	}
	defer client.Close()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		metadata, err := kadm.NewClient(client).Metadata(try)
		cancel()
		if err == nil && serves(metadata) {
			return nil
		}
		if !p.Running() {
			if !child.PortFree(b.port) || !child.PortFree(b.controller) {
				return fmt.Errorf("broker on ports %d and %d: %w", b.port, b.controller, child.ErrPort)
			}
			return fmt.Errorf("broker ended while starting: %v\n%s", p.Err(), b.logTail())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), b.kill())
		}
	}
}

func serves(m kadm.Metadata) bool {
	if len(m.Brokers) == 0 {
		return false
	}
	for _, topic := range m.Topics {
		if topic.Err != nil {
			return false
		}
		for _, partition := range topic.Partitions {
			if partition.Err != nil || partition.Leader < 0 {
				return false
			}
		}
	}
	return true
}

// logTail returns the last lines of the broker's log, for error messages.
func (b *Broker) logTail() []byte {
	const most = 2000
	text, err := os.ReadFile(b.LogPath())
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text[max(0, len(text)-most):])
}
