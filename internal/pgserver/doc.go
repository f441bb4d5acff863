// Package pgserver runs a PostgreSQL server on loopback for tests, benchmarks and the demo.
//
// It takes a local installation where there is one of the wanted major version, else it fetches binaries into a
// cache that processes share. The server listens on TCP at 127.0.0.1 alone, trusts whoever connects unless a
// password is set, has wal_level=logical and does not flush to disk unless asked.
//
// # Life of a server
//
// The postmaster is a direct child of this process, started without pg_ctl, so that it can be signalled, awaited,
// killed and paused, and goes when its parent goes: on Linux however the parent ends, elsewhere unless by
// SIGKILL. What Start makes, Close removes. What a process leaves behind that never came to Close, its data
// directory, the next Start of any process removes.
//
// PostgreSQL refuses to run as root. A root process runs it as user postgres or, lacking that, nobody, who then
// owns the data directory; the binaries stay root's.
//
// # Non-obvious
//
//   - The server is ready when postmaster.pid says so; no connection is made, so it works whatever the
//     authentication.
//   - Settings are in a file that postgresql.conf includes, not on the command line, where ALTER SYSTEM could not
//     override them.
//   - Backends are in sessions of their own: no process group holds a server together. Pause and Kill go by
//     parent ids.
//   - Ports come from below the kernel's range for outgoing connections, or a stopped server could find its port
//     taken by a client of somebody else.
//   - A killed postmaster leaks a System V segment; Kill and Close remove it. Dynamic shared memory is in files of
//     the data directory, so there is nothing else to leak.
package pgserver
