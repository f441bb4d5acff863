package pgserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config says which server to run and how.
type Config struct {
	// Major is the PostgreSQL major version, 14 to 18. A local installation of it is used where there is one,
	// else binaries fetched into the cache. 0 takes any local installation, else fetched binaries of 18.
	Major int

	// DataDir holds the data directory and the log. Empty: a new temporary one, removed by Close. Otherwise Close
	// keeps it, and a cluster that is in it already is used as it is; it must be of the same major version. As
	// root the server runs as another user, who must be able to reach it: a directory below testing.T.TempDir is
	// not reachable.
	DataDir string

	// Port is the TCP port on 127.0.0.1; 0 picks a free one. A server keeps its port through restarts.
	Port int

	// Password, if set, is the superuser's, and connections must authenticate with SCRAM. Empty: loopback is
	// trusted. It counts only when the cluster is made.
	Password string

	// Fsync makes the server flush to disk. Off by default: nothing here outlives the machine, and a kill -9
	// loses nothing that was written.
	Fsync bool

	// Settings are server settings by name; they win over DefaultSettings. They are written to a
	// configuration file, so ALTER SYSTEM wins over them.
	Settings map[string]string
}

// DefaultSettings returns the settings a server starts with unless Config.Settings says otherwise.
func DefaultSettings() map[string]string {
	return map[string]string{
		"wal_level":             "logical",
		"max_replication_slots": "20",
		"max_wal_senders":       "20",
		"listen_addresses":      "127.0.0.1",
		// Unix sockets need a short path that the server's user may write to; TCP needs nothing.
		"unix_socket_directories": "",
		// Shared memory in files of the data directory goes away with it, even after a kill -9.
		"dynamic_shared_memory_type": "mmap",
		"log_line_prefix":            "%m [%p] %q%d %a ",
	}
}

// settingsFile returns the text of the configuration file for a server on port.
func (c *Config) settingsFile(port int) string {
	all := DefaultSettings()
	all["fsync"] = "off"
	if c.Fsync {
		all["fsync"] = "on"
	}
	maps.Copy(all, c.Settings)
	all["port"] = fmt.Sprint(port)

	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(all[name]))
	}
	return b.String()
}

func (c *Config) validate() error {
	var errs []error
	if _, known := embeddedVersions[c.Major]; c.Major != 0 && !known {
		errs = append(errs, fmt.Errorf("major version %d is none of 14 to 18", c.Major))
	}
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port %d is none", c.Port))
	}
	for name, value := range c.Settings {
		if name == "port" {
			errs = append(errs, errors.New("setting port: use Config.Port"))
		}
		if strings.ContainsAny(name+value, "\n\r\x00") {
			errs = append(errs, fmt.Errorf("setting %q: line break or NUL", name))
		}
	}
	return errors.Join(errs...)
}
