package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// addMistake records what is wrong with a key.
type addMistake func(key, problem, hint string)

// validate checks every value by itself and against the others, without connecting to anything.
func (c *Config) validate(add addMistake) {
	c.Postgres.validate(add)
	c.Ledger.validate(add)
	c.validateDeliver(add)
	c.validateBacklog(add)
	c.validateSink(add)
	c.Route.validate(add)
	c.plan(add)
	c.Admin.validate(add)
	c.validateRetention(add)
	if c.WindowBytes < 1<<20 || c.WindowBytes > 1<<30 {
		add("window_bytes", fmt.Sprintf("%s is out of range", &c.WindowBytes), "use 1MiB to 1GiB")
	}
	c.validateRecords(add)
	if c.DrainTimeout < 0 || c.DrainTimeout > time.Hour {
		add("drain_timeout", fmt.Sprintf("%s is out of range", c.DrainTimeout), "use 0s to 1h")
	}
	if !slices.Contains([]string{"auto", "json", "text"}, c.Log.Format) {
		add("log.format", fmt.Sprintf("%s is not a format", quoted(c.Log.Format)), "use auto, json or text")
	}
}

func (p *PostgresConfig) validate(add addMistake) {
	if !regexp.MustCompile(`^[a-z0-9_]{1,63}$`).MatchString(p.Slot) {
		add("postgres.slot", fmt.Sprintf("%s is not a slot name", quoted(p.Slot)), "use 1 to 63 of a-z, 0-9 and _")
	}
	if !isIdentifier(p.Publication) {
		add("postgres.publication", fmt.Sprintf("%s is not a publication name", quoted(p.Publication)), "use 1 to 63 bytes without quotes and control characters")
	}
	if schema, table, ok := strings.Cut(p.Table, "."); !ok || !isIdentifier(schema) || !isIdentifier(table) || strings.Contains(table, ".") {
		add("postgres.table", fmt.Sprintf("%s is not a table name", quoted(p.Table)), "write schema and table, unquoted: outbox.events")
	}
	p.connection().validate(add)
}

func secretFileHint(err error) string {
	var open *openFileError
	if errors.As(err, &open) {
		return "chmod 600 the file, or 640 if root owns it"
	}
	return "the file must exist, be readable by the relay and hold one line"
}

func (c *Config) validateBacklog(add addMistake) {
	switch c.Backlog {
	case "", "publish", "skip":
	default:
		add("backlog", fmt.Sprintf("%s is not a choice", quoted(c.Backlog)), "use publish or skip, or leave it out")
	}
}

func (c *Config) validateSink(add addMistake) {
	switch c.Sink.Type {
	case "stdout":
		return
	case "webhook":
		c.Webhook.validate(add)
		return
	case "kafka":
	default:
		add("sink.type", fmt.Sprintf("%s is not a sink", quoted(c.Sink.Type)), "use kafka, webhook or stdout")
		return
	}
	if len(c.Kafka.Brokers) == 0 {
		add("kafka.brokers", "not set", "name at least one broker, host:port, or use sink.type stdout")
	}
	for _, b := range c.Kafka.Brokers {
		if host, port, err := splitHostPort(b); err != nil || host == "" || port == 0 {
			add("kafka.brokers", fmt.Sprintf("%s is not an address", quoted(b)), "write host:port, like kafka:9092")
		}
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`).MatchString(c.Kafka.ClientID) {
		add("kafka.client_id", fmt.Sprintf("%s is not a client id", quoted(c.Kafka.ClientID)), "use 1 to 249 of a-z, A-Z, 0-9, . _ -")
	}
	if t := c.Kafka.RequestTimeout; t < time.Second || t > 5*time.Minute {
		add("kafka.request_timeout", fmt.Sprintf("%s is out of range", t), "use 1s to 5m")
	}
	c.Kafka.validateClient(add)
	if !slices.Contains([]string{"on", "off"}, c.Kafka.ResumeCheck) {
		add("kafka.resume_check", fmt.Sprintf("%s is not a choice", quoted(c.Kafka.ResumeCheck)), "use on or off")
	}
}

func (r *RouteConfig) validate(add addMistake) {
	sample := strings.ReplaceAll(r.Topic, "{aggregate_type}", "x")
	switch {
	case strings.ContainsAny(sample, "{}"):
		add("route.topic", fmt.Sprintf("%s has an unknown placeholder", quoted(r.Topic)), "the only one is {aggregate_type}")
	case !isTopic(sample):
		add("route.topic", fmt.Sprintf("%s does not make a topic name", quoted(r.Topic)), topicHint)
	}
	for _, t := range r.Topics {
		if !isTopic(t) {
			add("route.topics", fmt.Sprintf("%s is not a topic name", quoted(t)), topicHint)
		}
	}
}

const topicHint = "use 1 to 249 of a-z, A-Z, 0-9, . _ - and not __ at the start"

func isTopic(s string) bool {
	return regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`).MatchString(s) && !strings.HasPrefix(s, "__") && s != "." && s != ".."
}

func (a *AdminConfig) validate(add addMistake) {
	if a.Listen == "" {
		return
	}
	host, _, err := splitHostPort(a.Listen)
	if err != nil || (host != "" && host != "localhost" && !isIP(host)) {
		add("admin.listen", fmt.Sprintf("%s is not an address", quoted(a.Listen)), "write an IP address or localhost and a port, like 127.0.0.1:7070")
		return
	}
	if !isLoopback(host) {
		if !a.AllowRemote {
			add("admin.listen", fmt.Sprintf("%s can be reached from other machines", quoted(a.Listen)), "use a loopback address, or set admin.allow_remote: true")
		}
		if a.Pprof {
			add("admin.pprof", fmt.Sprintf("profiles hold memory and admin.listen %q can be reached from other machines", a.Listen), "use a loopback address")
		}
	}
	for _, h := range a.Hosts {
		if h == "" || strings.ContainsAny(h, "/:@ ") {
			add("admin.hosts", fmt.Sprintf("%s is not a host name", quoted(h)), "write the name alone, without scheme and port")
		}
	}
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// isIdentifier accepts what can stand in double quotes as a name in PostgreSQL.
func isIdentifier(s string) bool {
	return len(s) >= 1 && len(s) <= 63 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '"' || r == '\'' })
}

// splitHostPort splits an address and insists on a numeric port.
func splitHostPort(addr string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, err
	}
	return host, uint16(n), nil
}
