package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc: USER_HZ is 100 on every architecture that Go runs on.
const tick = time.Second / 100

// cpuOf returns the CPU time that a process has used, its ended threads included.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return parseStat(text)
}

// parseStat reads utime and stime, fields 14 and 15. The second field is the program's name in parentheses and may
// hold anything, parentheses and spaces too.
func parseStat(text []byte) (time.Duration, error) {
	_, rest, found := bytes.Cut(text, []byte("("))
	end := bytes.LastIndexByte(rest, ')')
	if !found || end < 0 {
		return 0, errors.New("read CPU time: no program name")
	}
	fields := strings.Fields(string(rest[end+1:])) // the first is field 3
	if len(fields) < 13 {
		return 0, fmt.Errorf("read CPU time: %d fields", len(fields)+2)
	}
	var total time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}

// peakRSSOf returns the most memory a process has had resident, in bytes.
func peakRSSOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read peak memory: %w", err)
	}
	return parsePeak(string(text))
}

func parsePeak(status string) (int64, error) { return parseKiB(status, "VmHWM:") }

// availableMemory returns the bytes that programs could still take.
func availableMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read free memory: %w", err)
	}
	return parseKiB(string(text), "MemAvailable:")
}

// parseKiB finds the line of a name and returns its value in bytes.
func parseKiB(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s %w", name, err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("read %s no such line", name)
}

// machineCPU returns the CPU time that all processes have used since the machine started.
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	return parseMachine(string(text))
}

// parseMachine sums user, nice, system, irq and softirq of the first line. Idle, waiting and stolen time is not use,
// and guest time is in user already.
func parseMachine(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read the machine's CPU time: line %q", line)
	}
	var total time.Duration
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's CPU time: %w", err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}

// loadAverage returns the load of the last minute as the kernel writes it.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}
