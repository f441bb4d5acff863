package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// key is one thing that can be set: its name, what help says of it, and where its value lives.
type key struct {
	name  string
	usage string
	value pflag.Value
	// secret values are never shown and only their harmless part may be a flag.
	secret bool
	// whole says of a secret that all of it is one: a password, not a connection string.
	whole bool
	// entries are lists of mappings, which only the file can hold.
	entries entryList
}

// keys lists every key of a configuration, in the order in which they are shown. It is the only place where a
// name stands beside its field.
func (c *Config) keys() []key {
	return slices.Concat(c.sourceKeys(), c.Webhook.keys(), c.relayKeys())
}

// sourceKeys lists those of the sections up to kafka.
func (c *Config) sourceKeys() []key {
	return []key{
		{name: "postgres.url", value: (*secretValue)(&c.Postgres.URL), secret: true,
			usage: "connection string of the database; as a flag only without a password"},
		{name: "postgres.url_file", value: (*stringValue)(&c.Postgres.URLFile),
			usage: "file that holds the connection string"},
		{name: "postgres.password_file", value: (*stringValue)(&c.Postgres.PasswordFile),
			usage: "file that holds the password"},
		{name: "postgres.slot", value: (*stringValue)(&c.Postgres.Slot),
			usage: "replication slot"},
		{name: "postgres.publication", value: (*stringValue)(&c.Postgres.Publication),
			usage: "publication of the outbox table"},
		{name: "postgres.table", value: (*stringValue)(&c.Postgres.Table),
			usage: "outbox table, schema.name"},
		{name: "postgres.ensure", value: (*boolValue)(&c.Postgres.Ensure),
			usage: "create publication and slot when missing; --ensure is short for it"},
		{name: "postgres.failover", value: (*boolValue)(&c.Postgres.Failover),
			usage: "make the slot one that a standby server keeps too; PostgreSQL 17 or later"},
		{name: "postgres.allow_insecure_tls", value: (*boolValue)(&c.Postgres.AllowInsecureTLS),
			usage: "accept a database connection over a network without a verified server"},
		{name: "ledger.url", value: (*secretValue)(&c.Ledger.URL), secret: true,
			usage: "connection string of the ledger's database; default: postgres.url; as a flag only without a password"},
		{name: "ledger.url_file", value: (*stringValue)(&c.Ledger.URLFile),
			usage: "file that holds that connection string"},
		{name: "ledger.password_file", value: (*stringValue)(&c.Ledger.PasswordFile),
			usage: "file that holds the password for ledger.url"},
		{name: "ledger.allow_insecure_tls", value: (*boolValue)(&c.Ledger.AllowInsecureTLS),
			usage: "accept a connection to the ledger over a network without a verified server"},
		{name: "backlog", value: (*stringValue)(&c.Backlog),
			usage: "what becomes of rows older than the slot: publish, skip, or empty when there must be none"},
		{name: "sink.type", value: (*stringValue)(&c.Sink.Type),
			usage: "where records go: kafka, webhook or stdout"},
		{name: "kafka.brokers", value: (*listValue)(&c.Kafka.Brokers),
			usage: "brokers to start from, host:port"},
		{name: "kafka.client_id", value: (*stringValue)(&c.Kafka.ClientID),
			usage: "name the brokers see"},
		{name: "kafka.request_timeout", value: (*durationValue)(&c.Kafka.RequestTimeout),
			usage: "limit of one request to a broker"},
		{name: "kafka.resume_check", value: (*stringValue)(&c.Kafka.ResumeCheck),
			usage: "on: look in the topics for what was published already; off: publish it again"},
		{name: "kafka.compression", value: (*stringValue)(&c.Kafka.Compression),
			usage: "none, lz4, zstd, snappy or gzip"},
		{name: "kafka.fencing", value: (*stringValue)(&c.Kafka.Fencing),
			usage: "on: keep an earlier relay from writing; off: do without a transactional id"},
		{name: "kafka.idempotent", value: (*boolValue)(&c.Kafka.Idempotent),
			usage: "have the brokers recognise a batch that is sent again"},
		{name: "kafka.create_topics", value: (*boolValue)(&c.Kafka.CreateTopics),
			usage: "create topics that do not exist; --create-topics is short for it"},
		{name: "kafka.new_topics.partitions", value: (*numberValue)(&c.Kafka.NewTopics.Partitions),
			usage: "partitions of a topic that the relay makes; 0 is the brokers' default"},
		{name: "kafka.new_topics.replication_factor", value: (*numberValue)(&c.Kafka.NewTopics.ReplicationFactor),
			usage: "its replicas; 0 is the brokers' default"},
		{name: "kafka.new_topics.config", value: (*listValue)(&c.Kafka.NewTopics.Config),
			usage: "its settings, name=value"},
		{name: "kafka.tls.enabled", value: (*boolValue)(&c.Kafka.TLS.Enabled),
			usage: "encrypt the connections to the brokers"},
		{name: "kafka.tls.ca_file", value: (*stringValue)(&c.Kafka.TLS.CAFile),
			usage: "trusted authorities, PEM; empty is the system's"},
		{name: "kafka.tls.cert_file", value: (*stringValue)(&c.Kafka.TLS.CertFile),
			usage: "the relay's certificate, PEM, for brokers that ask for one"},
		{name: "kafka.tls.key_file", value: (*stringValue)(&c.Kafka.TLS.KeyFile),
			usage: "the key of that certificate, PEM"},
		{name: "kafka.sasl.mechanism", value: (*stringValue)(&c.Kafka.SASL.Mechanism),
			usage: "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty is no authentication"},
		{name: "kafka.sasl.username", value: (*stringValue)(&c.Kafka.SASL.Username),
			usage: "user that the brokers know"},
		{name: "kafka.sasl.password", value: (*secretValue)(&c.Kafka.SASL.Password), secret: true, whole: true,
			usage: "its password; not as a flag"},
		{name: "kafka.sasl.password_file", value: (*stringValue)(&c.Kafka.SASL.PasswordFile),
			usage: "file that holds the password"},
		{name: "kafka.sasl.allow_plaintext", value: (*boolValue)(&c.Kafka.SASL.AllowPlaintext),
			usage: "accept mechanism PLAIN on connections that are not encrypted"},
	}
}

// relayKeys lists those of the sections behind webhook.
func (c *Config) relayKeys() []key {
	return []key{
		{name: "route.topic", value: (*stringValue)(&c.Route.Topic),
			usage: "topic of events that name none"},
		{name: "route.topics", value: (*listValue)(&c.Route.Topics),
			usage: "topics that events may name"},
		{name: "route.compression", value: (*stringValue)(&c.Route.Compression),
			usage: "compression instead of kafka.compression; empty is that"},
		{name: "route.poison", value: (*stringValue)(&c.Route.Poison),
			usage: "what becomes of an event that cannot be published: halt, park or hold-key"},
		{name: "route.dead_letter_topic", value: (*stringValue)(&c.Route.DeadLetterTopic),
			usage: "topic that gets a copy of each dead letter; empty is none"},
		{name: "tables", value: (*tablesValue)(&c.Tables), entries: (*tablesValue)(&c.Tables),
			usage: "outbox tables and what becomes of their rows, instead of postgres.table"},
		{name: "messages", value: (*messagesValue)(&c.Messages), entries: (*messagesValue)(&c.Messages),
			usage: "logical messages that become records"},
		{name: "window_bytes", value: &c.WindowBytes,
			usage: "limit of records accepted and not yet acknowledged"},
		{name: "max_record_bytes", value: &c.MaxRecordBytes,
			usage: "largest record that is tried, before compression"},
		{name: "wal_warn_bytes", value: &c.WALWarnBytes,
			usage: "WAL retained for the slot from which on the log warns; 0 is half of the server's limit, or 1GiB without one"},
		{name: "drain_timeout", value: (*durationValue)(&c.DrainTimeout),
			usage: "how long a stop waits for records in flight"},
		{name: "retention.age", value: (*durationValue)(&c.Retention.Age),
			usage: "age at which published rows are deleted from the outbox tables; 0s is never"},
		{name: "retention.interval", value: (*durationValue)(&c.Retention.Interval),
			usage: "time between two looks for such rows"},
		{name: "retention.batch", value: (*numberValue)(&c.Retention.Batch),
			usage: "rows deleted in one transaction at most"},
		{name: "retention.requests", value: (*durationValue)(&c.Retention.Requests),
			usage: "age at which requests that are over are deleted; 0s is never"},
		{name: "retention.dead_letters", value: (*durationValue)(&c.Retention.DeadLetters),
			usage: "age at which published and discarded dead letters are deleted, once their rows are gone; 0s is never"},
		{name: "admin.listen", value: (*stringValue)(&c.Admin.Listen),
			usage: "address for health, metrics and status; empty is off"},
		{name: "admin.allow_remote", value: (*boolValue)(&c.Admin.AllowRemote),
			usage: "accept an admin.listen that other machines reach"},
		{name: "admin.hosts", value: (*listValue)(&c.Admin.Hosts),
			usage: "host names, beside localhost, under which the listener may be asked"},
		{name: "admin.pprof", value: (*boolValue)(&c.Admin.Pprof),
			usage: "serve /debug/pprof/ on a loopback address"},
		{name: "deliver.url", value: (*secretValue)(&c.Deliver.URL), secret: true,
			usage: "connection string of the database in which the rules' queries run; default: postgres.url; as a flag only without a password"},
		{name: "deliver.url_file", value: (*stringValue)(&c.Deliver.URLFile),
			usage: "file that holds that connection string"},
		{name: "deliver.password_file", value: (*stringValue)(&c.Deliver.PasswordFile),
			usage: "file that holds the password for deliver.url"},
		{name: "deliver.allow_insecure_tls", value: (*boolValue)(&c.Deliver.AllowInsecureTLS),
			usage: "accept a connection to that database over a network without a verified server"},
		{name: "deliver.rules", value: (*stringValue)(&c.Deliver.Rules),
			usage: "file with the rules, YAML"},
		{name: "deliver.group", value: (*stringValue)(&c.Deliver.Group),
			usage: "consumer group of relay deliver"},
		{name: "deliver.topics", value: (*listValue)(&c.Deliver.Topics),
			usage: "topics that relay deliver reads"},
		{name: "deliver.listen", value: (*stringValue)(&c.Deliver.Listen),
			usage: "address for health and metrics of relay deliver; empty is off"},
		{name: "deliver.http.secret_file", value: (*stringValue)(&c.Deliver.HTTP.SecretFile),
			usage: "file with the keys of browsers' tokens; without it none are served"},
		{name: "deliver.http.listen", value: (*stringValue)(&c.Deliver.HTTP.Listen),
			usage: "address from which browsers get notifications"},
		{name: "deliver.http.allow_remote", value: (*boolValue)(&c.Deliver.HTTP.AllowRemote),
			usage: "accept a deliver.http.listen that other machines reach"},
		{name: "deliver.http.origins", value: (*listValue)(&c.Deliver.HTTP.Origins),
			usage: "sites whose pages may ask for notifications, like https://app.example"},
		{name: "log.level", value: (*levelValue)(&c.Log.Level),
			usage: "debug, info, warn or error"},
		{name: "log.format", value: (*stringValue)(&c.Log.Format),
			usage: "auto, json or text"},
	}
}

// discloses reports whether the text of a value holds what nobody may see.
func (k key) discloses(text string) bool {
	return k.secret && (k.whole && text != "" || hasPassword(text))
}

// file names the key that takes the secret from a file instead.
func (k key) file() string {
	if k.whole {
		return k.name + "_file"
	}
	section, _, _ := strings.Cut(k.name, ".")
	return section + ".password_file"
}

const envPrefix = "RELAY_"

// envName spells a key as an environment variable.
func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// flagName spells a key as a flag, without the dashes.
func flagName(key string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(key) }

// addConfigFlags gives a command the flags of the configuration and returns them.
func addConfigFlags(cmd *cobra.Command) *pflag.FlagSet {
	fs := configFlags()
	cmd.Flags().AddFlagSet(fs)
	cmd.Flags().SetNormalizeFunc(fs.GetNormalizeFunc())
	return fs
}

// configFlags returns a flag set with a flag for each key and one for the file. The flags write into a
// configuration of their own, which only supplies the defaults that help shows: what counts is read from the
// set by loadConfig.
func configFlags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("config", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.String("config", "", "configuration file, YAML (RELAY_CONFIG)")
	for _, k := range defaultConfig().keys() {
		if k.entries != nil {
			continue
		}
		f := fs.VarPF(&rawValue{text: k.value.String(), kind: k.value.Type()}, flagName(k.name), "", k.usage)
		if k.value.Type() == kindBool {
			f.NoOptDefVal = "true"
		}
	}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch name {
		case "ensure":
			name = "postgres-ensure"
		case "create-topics":
			name = "kafka-create-topics"
		}
		return pflag.NormalizedName(name)
	})
	return fs
}

// rawValue keeps a flag's text as it was given: all sources are parsed in one place, so that all mistakes can
// be told at once. A list flag that is given twice adds up.
type rawValue struct {
	text string
	kind string
	set  bool
}

func (v *rawValue) Set(s string) error {
	if v.set && v.kind == kindList {
		s = v.text + "," + s
	}
	v.text, v.set = s, true
	return nil
}

func (v *rawValue) String() string { return v.text }
func (v *rawValue) Type() string   { return v.kind }
