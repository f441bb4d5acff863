package pgserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// processes lists the processes of the machine that have not ended.
func processes() ([]process, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []process
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // ended meanwhile
		}
		// "pid (name) state ppid ...", where name may hold anything, parentheses too.
		open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		if open < 0 || end < open {
			return nil, fmt.Errorf("read %s: unexpected form", stat)
		}
		var p process
		var state string
		if _, err := fmt.Sscan(string(text[:open]), &p.pid); err != nil {
			return nil, fmt.Errorf("read %s: %w", stat, err)
		}
		if _, err := fmt.Sscan(string(text[end+1:]), &state, &p.parent); err != nil {
			return nil, fmt.Errorf("read %s: %w", stat, err)
		}
		if state == "Z" || state == "X" {
			continue
		}
		p.stopped = state == "T"
		all = append(all, p)
	}
	return all, nil
}
