package pgserver

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is whom the server runs as; nil is ourselves.
type account = *syscall.Credential

// serverAccount picks the user to run as. PostgreSQL refuses to run as root, and wants its user to have a name.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read uid of %q: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read gid of %q: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("run PostgreSQL as root: no user postgres or nobody to run it as")
}
