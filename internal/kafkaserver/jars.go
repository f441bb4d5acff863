package kafkaserver

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// version of Apache Kafka that is fetched and run.
const version = "4.3.1"

//go:embed fetch.sh
var fetchScript string

// Available says why Start cannot run a broker on this machine: Java is missing, or the jars are not in the
// cache and Maven is not there to fetch them. Nil if it can.
func Available() error {
	if _, err := exec.LookPath("java"); err != nil {
		return fmt.Errorf("find Java: %w", err)
	}
	if _, err := os.Stat(filepath.Join(cacheDir(), "kafka-"+version)); err == nil {
		return nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return fmt.Errorf("find Maven: %w", err)
	}
	return nil
}

// cacheDir is where the script keeps the jars.
func cacheDir() string {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "outboxrelay")
}

// fetch returns the directory with the jars.
func fetch(ctx context.Context) (string, error) {
	cmd := exec.Command("sh", "-c", fetchScript)
	cmd.Env = append(os.Environ(), "KAFKA_VERSION="+version)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, msg strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("fetch jars: %w", err)
	}
	// Maven is the script's child: end both.
	stop := context.AfterFunc(ctx, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) })
	defer stop()
	if err := cmd.Wait(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return "", fmt.Errorf("fetch jars: %w", cause)
		}
		return "", fmt.Errorf("fetch jars: %w\n%s", err, strings.TrimSpace(msg.String()))
	}
	return strings.TrimSpace(out.String()), nil
}
