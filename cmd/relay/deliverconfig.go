package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/ledger/deliver"
)

// DeliverConfig is about relay deliver, the notification worker. Its Kafka is that of section kafka, its ledger that of
// section ledger.
type DeliverConfig struct {
	// URL is the connection string of the application's database, in which the rules' queries run: a secret. Default:
	// section postgres.
	URL Secret
	// URLFile names a file that holds the connection string, instead of URL.
	URLFile string
	// PasswordFile names a file that holds the password, for a connection string without one.
	PasswordFile string
	// AllowInsecureTLS accepts a connection over a network that is not encrypted or whose server is not verified.
	// Default false.
	AllowInsecureTLS bool
	// Rules is the file with the rules.
	Rules string
	// Group is the consumer group: processes of one group share the work of registering. Default "relay-deliver".
	Group string
	// Topics are the topics to read. At least one.
	Topics []string
	// Listen is the address for health and metrics, host:port. Default "127.0.0.1:7071"; empty switches it off.
	// admin.allow_remote and admin.hosts hold for it too.
	Listen string
	// HTTP is about the listener from which browsers get notifications.
	HTTP DeliverHTTPConfig
}

func (c *DeliverConfig) set() bool { return !c.URL.Empty() || c.URLFile != "" }

func (c *DeliverConfig) connection() connection {
	return connection{"deliver", c.URL, c.URLFile, c.PasswordFile, c.AllowInsecureTLS}
}

// validateDeliver checks what is set; what must be is for the commands.
func (c *Config) validateDeliver(add addMistake) {
	d := &c.Deliver
	switch {
	case d.set():
		d.connection().validate(add)
	case d.PasswordFile != "":
		add("deliver.password_file", "there is no deliver.url that it could belong to", "set deliver.url too, or use postgres.password_file")
	}
	for _, t := range d.Topics {
		if !isTopic(t) {
			add("deliver.topics", fmt.Sprintf("%s is not a topic name", quoted(t)), topicHint)
		}
	}
	if len(d.Group) > 255 {
		add("deliver.group", "is longer than 255 bytes", "use a shorter name")
	}
	d.HTTP.validate(add)
	listen := AdminConfig{Listen: d.Listen, AllowRemote: c.Admin.AllowRemote}
	listen.validate(func(key, problem, hint string) {
		if key == "admin.listen" {
			add("deliver.listen", problem, hint)
		}
	})
}

// appConn reads the secrets anew and returns how to connect to the application's database, deliverLedgerConn to the
// ledger's. Call them for each connection. Their errors are safe to print.
func (c *Config) appConn() (*pgx.ConnConfig, error) {
	if c.Deliver.set() {
		return c.Deliver.connection().connConfig()
	}
	return c.Postgres.ConnConfig()
}

func (c *Config) deliverLedgerConn() (*pgx.ConnConfig, error) {
	if c.Ledger.set() {
		return c.Ledger.connection().connConfig()
	}
	return c.appConn()
}

// checkDeliver validates what relay deliver needs, with the parts that a command uses besides.
func (l *loader) checkDeliver(consumes bool) error {
	c := l.config
	sections := []string{"deliver", "ledger", "log", "drain_timeout"}
	if !c.Deliver.set() {
		if c.Postgres.URL.Empty() && c.Postgres.URLFile == "" {
			l.mistake("deliver.url", "", "not set",
				"set RELAY_DELIVER_URL to postgres://user:password@host:5432/database?sslmode=verify-full, the application's database; RELAY_POSTGRES_URL serves where that is the outbox's")
		} else {
			sections = append(sections, "postgres")
		}
	}
	if c.Deliver.Rules == "" {
		l.mistake("deliver.rules", "", "not set", "name the file with the rules; docs/notifications.md has an example")
	}
	if consumes {
		sections = append(sections, "kafka", "admin")
		if len(c.Deliver.Topics) == 0 {
			l.mistake("deliver.topics", "", "not set", "name the topics that the relay publishes to, like outbox.event.Order")
		}
		if c.Deliver.Group == "" {
			l.mistake("deliver.group", l.sources["deliver.group"], "is empty", "name a consumer group")
		}
	}
	return l.check(sections...)
}

// rules reads the rules file. Errors: Mistakes.
func (c *DeliverConfig) rules(kinds []deliver.Kind) (*deliver.Rules, error) {
	text, err := os.ReadFile(c.Rules)
	if err != nil {
		return nil, Mistakes{{Key: "deliver.rules", Source: "file " + c.Rules, Problem: "cannot be read: " + causeOf(err), Hint: "name the file with the rules"}}
	}
	rules, err := deliver.ParseRules(text, kinds)
	wrong, ok := errors.AsType[deliver.Mistakes](err)
	if !ok {
		return rules, err
	}
	var ms Mistakes
	for _, m := range wrong {
		source := "file " + c.Rules
		if m.Line > 0 {
			source += fmt.Sprintf(", line %d column %d", m.Line, m.Column)
		}
		ms = append(ms, Mistake{Key: m.Path, Source: source, Problem: m.Problem, Hint: m.Hint})
	}
	return nil, ms
}
