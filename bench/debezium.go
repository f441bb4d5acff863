package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed debezium/pom.xml
var debeziumPOM []byte

//go:embed debezium/Relay.java
var debeziumProgram []byte

// debeziumVersion is what the pom asks for; it names the directory in the cache.
const debeziumVersion = "3.6.1.Final"

// debeziumJars is the directory that holds the fetched jars.
func debeziumJars() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	return filepath.Join(cache, "outboxrelay", "debezium-"+debeziumVersion), nil
}

func (b *bench) debeziumClasses() string { return filepath.Join(b.dir.Path, "debezium") }

// prepareDebezium fetches the jars with Maven, once, and compiles the program.
func prepareDebezium(ctx context.Context, b *bench) error {
	for _, tool := range []string{"javac", "java"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w: %s is not installed", errAbsent, tool)
		}
	}
	jars, err := debeziumJars()
	if err != nil {
		return err
	}
	work := b.debeziumClasses()
	if err := os.MkdirAll(work, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if _, err := os.Stat(jars); err != nil {
		if err := fetchDebezium(ctx, b, work, jars); err != nil {
			return err
		}
	}
	source := filepath.Join(work, "Relay.java")
	if err := os.WriteFile(source, debeziumProgram, 0o644); err != nil {
		return fmt.Errorf("write program: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "javac", "-cp", filepath.Join(jars, "*"), "-d", work, source).CombinedOutput(); err != nil {
		return fmt.Errorf("compile Relay.java: %w\n%s", err, out)
	}
	return nil
}

// fetchDebezium fills the cache. The jars appear there in one rename, so that two may fetch at once.
func fetchDebezium(ctx context.Context, b *bench, work, jars string) error {
	if _, err := exec.LookPath("mvn"); err != nil {
		return fmt.Errorf("%w: Maven is not installed, and the jars are not in the cache", errAbsent)
	}
	b.say("fetching Debezium %s with Maven", debeziumVersion)
	pom := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(pom, debeziumPOM, 0o644); err != nil {
		return fmt.Errorf("write pom: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(jars), 0o755); err != nil {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	fetched, err := os.MkdirTemp(filepath.Dir(jars), ".debezium-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(fetched)
	out, err := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+fetched).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("%w: Maven cannot resolve it", errAbsent), fmt.Errorf("%w\n%s", err, out))
	}
	if err := os.Rename(fetched, jars); err != nil {
		if _, there := os.Stat(jars); there != nil {
			return fmt.Errorf("move jars into the cache: %w", err)
		}
	}
	return nil
}

// debeziumCommand runs the engine with half a gigabyte to begin with and one at most.
func debeziumCommand(b *bench, t *target) (*exec.Cmd, error) {
	jars, err := debeziumJars()
	if err != nil {
		return nil, err
	}
	offsets := filepath.Join(b.dir.Path, "offsets-"+t.topic)
	cmd := exec.Command("java", "-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", b.debeziumClasses()+":"+filepath.Join(jars, "*"), "Relay",
		strings.Join(b.kafka.Brokers(), ","), strconv.Itoa(b.pg.Port()), t.database, runSlot, publication, t.topic, offsets)
	cmd.Dir = b.dir.Path
	return cmd, nil
}
