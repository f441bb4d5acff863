//go:build !linux

package pgserver

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
)

// processes lists the processes of the machine that have not ended.
func processes() ([]process, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []process
	for line := range bytes.Lines(out) {
		var p process
		var state string
		if _, err := fmt.Sscan(string(line), &p.pid, &p.parent, &state); err != nil {
			return nil, fmt.Errorf("read process %q: %w", line, err)
		}
		if strings.HasPrefix(state, "Z") {
			continue
		}
		p.stopped = strings.HasPrefix(state, "T")
		all = append(all, p)
	}
	return all, nil
}
