package pgserver

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSegment removes the System V shared memory segment that a killed postmaster leaves behind. Its
// backends must be gone.
func (c *cluster) removeSegment() error {
	lines := c.postmasterFile()
	if len(lines) < 7 {
		return nil
	}
	var key, id int
	if _, err := fmt.Sscan(lines[6], &key, &id); err != nil {
		return fmt.Errorf("read shared memory id from %q: %w", strings.TrimSpace(lines[6]), err)
	}
	// Gone already is as well.
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EIDRM) {
		return fmt.Errorf("remove shared memory segment %d: %w", id, err)
	}
	return nil
}
