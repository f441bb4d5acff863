package main

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/sink"
)

// Config is everything that can be set about a relay process. Each value has one name with three spellings:
// postgres.slot in the file, RELAY_POSTGRES_SLOT in the environment, --postgres-slot on the command line; a
// later one in this list wins. keys.go has the names, validate.go the limits.
type Config struct {
	Postgres PostgresConfig
	Ledger   LedgerConfig
	Deliver  DeliverConfig

	// Backlog says what becomes of rows that were in the outbox table before the slot: "" when there must be
	// none, "publish" to publish them before everything else, "skip" to leave them unpublished for ever.
	Backlog string

	Sink    SinkConfig
	Kafka   KafkaConfig
	Webhook WebhookConfig
	Route   RouteConfig

	// Tables are the outbox tables and what becomes of their rows. Default: postgres.table alone, with the columns
	// that relay migrate makes. Only the file can hold them.
	Tables []TableConfig
	// Messages are the logical messages that become records, beside those of outbox.emit. Only the file can hold
	// them.
	Messages []MessageConfig

	// WindowBytes bounds the encoded records, over all topics, that are accepted and not yet acknowledged. When
	// it is full the relay reads no further rows. Default 16 MiB; 1 MiB to 1 GiB.
	WindowBytes ByteSize

	// MaxRecordBytes is the largest record that is tried, before compression, headers included. A larger one cannot be
	// published. Default 1048588, what brokers take unless told otherwise; 1 KiB to 100 MiB. More than WindowBytes is
	// allowed: such a record goes alone.
	MaxRecordBytes ByteSize

	// WALWarnBytes is how much WAL the server may retain for the slot before the log warns. Default 0: half of the
	// server's max_slot_wal_keep_size, or 1 GiB where that sets no limit.
	WALWarnBytes ByteSize

	// DrainTimeout is how long a stop waits for records in flight. Keep it below the grace period of whatever
	// stops the process. Default 20s; zero stops at once; at most 1h.
	DrainTimeout time.Duration

	Retention RetentionConfig

	Admin AdminConfig
	Log   LogConfig
}

// PostgresConfig says where the outbox is.
type PostgresConfig struct {
	// URL is the connection string, as a URL or in keyword form. It may hold a password, so it is a secret.
	// Either it or URLFile must be given.
	URL Secret
	// URLFile names a file that holds the connection string. It is read for each connection.
	URLFile string
	// PasswordFile names a file that holds the password, for a connection string without one. It is read for
	// each connection, so that a rotated password is found without a restart.
	PasswordFile string
	// Slot is the replication slot: the relay's place in the log and its lock. Default "relay"; lower-case
	// letters, digits and underscores, at most 63.
	Slot string
	// Publication is the publication that names the outbox table. Default "relay".
	Publication string
	// Table is the outbox table, schema and name. Default "outbox.events".
	Table string
	// Ensure makes the relay create publication and slot when they are missing, which needs more rights than
	// running does. Default false.
	Ensure bool
	// Failover makes the slot one that a standby server keeps too, so that a promotion loses nothing. It needs
	// PostgreSQL 17 or later, and the standby's sync_replication_slots. Default false.
	Failover bool
	// AllowInsecureTLS accepts a connection over a network that is not encrypted or whose server is not
	// verified. Default false: such a connection needs sslmode=verify-full.
	AllowInsecureTLS bool
}

// SinkConfig says what kind of sink takes the records.
type SinkConfig struct {
	// Type is "kafka" (default), "webhook", one request an event, or "stdout", one JSON line a record.
	Type string
}

// KafkaConfig says how to reach Kafka. It is not looked at when the sink is another one.
type KafkaConfig struct {
	// Brokers are the addresses, host:port, from which the cluster is discovered. At least one.
	Brokers []string
	// ClientID is the name the brokers see in their logs and quotas. Default "relay".
	ClientID string
	// RequestTimeout bounds one request to a broker. A produce request that runs out of it is sent again.
	// Default 30s; 1s to 5m.
	RequestTimeout time.Duration
	// ResumeCheck is "on" (default) or "off". On, a relay that starts looks in each topic for what was published
	// before the last one ended, and does not publish it again; that takes the right to read the topics.
	ResumeCheck string
	// Compression of batches: none, lz4 (default), zstd, snappy or gzip.
	Compression string
	// Fencing is "on" (default) or "off". Off, the relay needs no right to a transactional id, and an earlier one
	// may still write after it was replaced.
	Fencing string
	// Idempotent is true by default. False, for brokers that give no producer id, implies Fencing off, and a batch
	// whose answer was lost may be there twice.
	Idempotent bool
	// CreateTopics makes topics that do not exist, as NewTopics says. Default false.
	CreateTopics bool
	NewTopics    NewTopicsConfig

	TLS  TLSConfig
	SASL SASLConfig
}

// TLSConfig encrypts the connections to Kafka, with TLS 1.2 or later.
type TLSConfig struct {
	// Enabled is false by default.
	Enabled bool
	TLSFiles
}

// TLSFiles are the files of a TLS connection.
type TLSFiles struct {
	// CAFile holds the certificates of the authorities that are trusted, in PEM form. Default: the system's.
	CAFile string
	// CertFile and KeyFile hold the relay's own certificate and its key, for servers that ask for one. They are
	// read for each connection.
	CertFile string
	KeyFile  string
}

// SASLConfig authenticates the connections to Kafka.
type SASLConfig struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty, the default, is no authentication.
	Mechanism string
	// Username is the user that the brokers know.
	Username string
	// Password is the user's. Either it or PasswordFile must be given.
	Password Secret
	// PasswordFile names a file that holds the password. It is read for each connection, so that a rotated password
	// is found without a restart.
	PasswordFile string
	// AllowPlaintext accepts PLAIN on connections that are not encrypted. Default false.
	AllowPlaintext bool
}

// RouteConfig says which topic an event goes to.
type RouteConfig struct {
	// Topic is the name of the topic for events whose topic column is NULL; {aggregate_type} stands for the
	// event's own. Default "outbox.event.{aggregate_type}".
	Topic string
	// Topics are the names that the topic column may hold. Default none: an event that names a topic cannot be
	// published.
	Topics []string
	// Poison says what becomes of an event that cannot be published: "halt" (default) stops at it, "park" makes it a dead
	// letter and goes on, "hold-key" does that and keeps later events of its key back until somebody decides.
	Poison string
	// DeadLetterTopic gets a copy of each dead letter. Default "": none.
	DeadLetterTopic string
	// Compression is that of batches of these events. Default "": kafka.compression.
	Compression string
}

// AdminConfig is about the HTTP listener for health, metrics and status.
type AdminConfig struct {
	// Listen is the address, host:port. Default "127.0.0.1:7070"; empty switches the listener off.
	Listen string
	// AllowRemote accepts a Listen address that other machines reach. Default false.
	AllowRemote bool
	// Hosts are names, beside localhost and IP addresses, that a request's Host header may hold: the name under
	// which a monitoring system finds the relay. Default none.
	Hosts []string
	// Pprof serves /debug/pprof/. Only on a loopback address. Default false.
	Pprof bool
}

// LogConfig is about the log on standard error.
type LogConfig struct {
	// Level is the least level written: debug, info (default), warn or error.
	Level slog.Level
	// Format is "auto" (default; text on a terminal, else JSON), "json" or "text".
	Format string
}

// defaultConfig returns the configuration of a process that nobody has told anything.
func defaultConfig() *Config {
	return &Config{
		Postgres:    PostgresConfig{Slot: "relay", Publication: "relay", Table: "outbox.events"},
		Sink:        SinkConfig{Type: "kafka"},
		Webhook:     defaultWebhook(),
		Kafka:       KafkaConfig{ClientID: "relay", RequestTimeout: 30 * time.Second, ResumeCheck: "on", Compression: "lz4", Fencing: "on", Idempotent: true},
		Route:       RouteConfig{Topic: "outbox.event.{aggregate_type}", Poison: "halt"},
		WindowBytes: 16 << 20,

		MaxRecordBytes: ByteSize(sink.DefaultConfig().MaxRecordBytes),

		DrainTimeout: 20 * time.Second,
		Retention:    RetentionConfig{Interval: 10 * time.Minute, Batch: 1000},
		Admin:        AdminConfig{Listen: "127.0.0.1:7070"},
		Deliver:      DeliverConfig{Group: "relay-deliver", Listen: "127.0.0.1:7071", HTTP: DeliverHTTPConfig{Listen: "127.0.0.1:7072"}},
		Log:          LogConfig{Level: slog.LevelInfo, Format: "auto"},
	}
}

// ConnConfig reads the secrets anew and returns how to connect. Call it for each connection. Its errors are
// safe to print.
func (p *PostgresConfig) ConnConfig() (*pgx.ConnConfig, error) { return p.connection().connConfig() }
