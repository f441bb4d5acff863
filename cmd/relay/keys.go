package main

import (
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
}

// keys lists every key of a configuration, in the order in which they are shown. It is the only place where a
// name stands beside its field.
func (c *Config) keys() []key {
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
		{name: "postgres.allow_insecure_tls", value: (*boolValue)(&c.Postgres.AllowInsecureTLS),
			usage: "accept a database connection over a network without a verified server"},
		{name: "backlog", value: (*stringValue)(&c.Backlog),
			usage: "what becomes of rows older than the slot: skip, or empty when there must be none"},
		{name: "sink.type", value: (*stringValue)(&c.Sink.Type),
			usage: "where records go: kafka or stdout"},
		{name: "kafka.brokers", value: (*listValue)(&c.Kafka.Brokers),
			usage: "brokers to start from, host:port"},
		{name: "kafka.client_id", value: (*stringValue)(&c.Kafka.ClientID),
			usage: "name the brokers see"},
		{name: "kafka.request_timeout", value: (*durationValue)(&c.Kafka.RequestTimeout),
			usage: "limit of one request to a broker"},
		{name: "route.topic", value: (*stringValue)(&c.Route.Topic),
			usage: "topic of events that name none"},
		{name: "route.topics", value: (*listValue)(&c.Route.Topics),
			usage: "topics that events may name"},
		{name: "window_bytes", value: &c.WindowBytes,
			usage: "limit of records accepted and not yet acknowledged"},
		{name: "drain_timeout", value: (*durationValue)(&c.DrainTimeout),
			usage: "how long a stop waits for records in flight"},
		{name: "admin.listen", value: (*stringValue)(&c.Admin.Listen),
			usage: "address for health, metrics and status; empty is off"},
		{name: "admin.allow_remote", value: (*boolValue)(&c.Admin.AllowRemote),
			usage: "accept an admin.listen that other machines reach"},
		{name: "admin.hosts", value: (*listValue)(&c.Admin.Hosts),
			usage: "host names, beside localhost, under which the listener may be asked"},
		{name: "admin.pprof", value: (*boolValue)(&c.Admin.Pprof),
			usage: "serve /debug/pprof/ on a loopback address"},
		{name: "log.level", value: (*levelValue)(&c.Log.Level),
			usage: "debug, info, warn or error"},
		{name: "log.format", value: (*stringValue)(&c.Log.Format),
			usage: "auto, json or text"},
	}
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
		f := fs.VarPF(&rawValue{text: k.value.String(), kind: k.value.Type()}, flagName(k.name), "", k.usage)
		if k.value.Type() == kindBool {
			f.NoOptDefVal = "true"
		}
	}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "ensure" {
			name = "postgres-ensure"
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
