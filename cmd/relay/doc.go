// Command relay publishes the committed rows of a transactional outbox from PostgreSQL to Kafka.
//
// The package is the only one that knows all others. It reads the configuration, builds the component graph by
// hand, and shows what the components count; it holds no rule about events.
//
// # From a command line to an exit code
//
//	main.go        os.Exit(run(...)), nothing else, so that tests call run in process
//	cli.go         the commands; actions is where a command's work plugs in; errors and exit codes
//	keys.go        every setting: its name, its help, its field
//	load.go        file, environment, flags, in rising precedence; every mistake with its source
//	tables.go      the lists that only the file can hold
//	plan.go        what tables and messages mean to the stream and to the sink
//	validate.go    limits, and what settings demand of each other
//	supervise.go   what relay run builds
//	connection.go  how a database is reached: the outbox's, the ledger's, the application's
//	ledgercmd.go   the commands about the delivery ledger; ledgernext.go foretells what its functions will decide
//	deliver.go     what relay deliver builds; delivercmd.go has its commands, deliverconfig.go its settings
//	attend.go      what goes on beside a session's sink: requests, counts of dead letters
//	requestkinds.go, deadletters_run.go  how the relay carries requests out; requestcmd.go how commands make them
//
// An error reaches a person as one line "relay: what was seen" and one line "hint: what to do". The exit code is 0
// after success, 1 when it was tried and failed, 2 when it was not tried because the command line or the
// configuration is wrong. All mistakes of a configuration are told at once.
//
// # What is shown to whom
//
//	log.go         standard error, for a collector; a closed list of keys
//	admin.go       health, readiness, metrics and status over HTTP
//	metrics.go     the registry and its histograms
//	collector.go   counters and gauges, read from snapshots at each scrape
//	report.go      what relay status shows, by asking the running relay; screen.go for a person
//	statuswatch.go the same again and again; statusdb.go what the database says when no relay answers
//	slotwatch.go   the server's numbers of the slot, read apart from the stream; walalarm.go warns of them
//	meter.go       rates, from samples of the counters
//
// Components count and return; they neither log nor export. Whoever shows something takes a snapshot through
// sources, so a scrape costs the stream nothing but a few atomic reads.
//
// # Secrets
//
// A connection string may hold a password, so it is a Secret, which no formatter prints. That is not enough:
// errors quote. The parser of pgx repeats a string that it cannot parse, masking what it takes for the password,
// and where the password begins is exactly what cannot be known of a malformed string. So nothing of a refused
// string is shown (dsn.go), and of an accepted one only what was rebuilt from its parts. Every error goes through
// errText on its way to the log or to standard error. Values in wrong places are covered too: an argument is
// repeated only if it is a plain word, a setting only if it does not look like a connection string.
//
// Files with secrets must be private by libpq's rule for keys. They are read for each connection, so that a
// rotated password is found.
//
// # Stopping
//
// The first SIGTERM or SIGINT ends the soft context: what is in flight is finished. The second, or the drain timeout,
// ends the hard one. A third kills. See signals.go.
//
// # Non-obvious
//
//   - Kubernetes puts variables for a service named relay into every pod of its namespace: RELAY_PORT and others,
//     which nobody wrote. They are told apart from slips by the RELAY_SERVICE_HOST that comes with them.
//   - YAML has types of its own: a slot named 007 would become 7. Where that could have happened the value is
//     refused and quotes are asked for.
//   - A sink lives for one session, and its counters with it; sinkTotals adds them up, or they would fall back at
//     each reconnect.
//   - /healthz does not look at PostgreSQL or Kafka: restarting the relay would not mend them.
//   - The Host header may hold any address but only known names: an address cannot be rebound by DNS.
//   - sslmode prefer is two attempts, one in plain text, and pgx makes both of them part of one configuration: every
//     attempt is judged, not the first.
package main
