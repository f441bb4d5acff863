package main

import (
	"github.com/jackc/pgx/v5"
)

// LedgerConfig says where the delivery ledger is. It belongs to those who consume events, so its database is often
// not the one that holds the outbox.
type LedgerConfig struct {
	// URL is the connection string, a secret. Default: the outbox's database, with all of section postgres that is
	// about connecting.
	URL Secret
	// URLFile names a file that holds the connection string, instead of URL.
	URLFile string
	// PasswordFile names a file that holds the password, for a connection string without one.
	PasswordFile string
	// AllowInsecureTLS accepts a connection over a network that is not encrypted or whose server is not verified.
	// Default false.
	AllowInsecureTLS bool
}

// set reports whether the ledger has a database of its own.
func (c *LedgerConfig) set() bool { return !c.URL.Empty() || c.URLFile != "" }

func (c *LedgerConfig) connection() connection {
	return connection{"ledger", c.URL, c.URLFile, c.PasswordFile, c.AllowInsecureTLS}
}

func (c *LedgerConfig) validate(add addMistake) {
	switch {
	case c.set():
		c.connection().validate(add)
	case c.PasswordFile != "":
		add("ledger.password_file", "there is no ledger.url that it could belong to", "set ledger.url too, or use postgres.password_file")
	}
}

// LedgerConn reads the secrets anew and returns how to connect to the ledger. Call it for each connection. Its
// errors are safe to print.
func (c *Config) LedgerConn() (*pgx.ConnConfig, error) {
	if c.Ledger.set() {
		return c.Ledger.connection().connConfig()
	}
	return c.Postgres.ConnConfig()
}

// checkLedger validates what a command needs that talks to the ledger and to nothing else.
func (l *loader) checkLedger() error {
	c := l.config
	switch {
	case c.Ledger.set():
		return l.check("ledger")
	case c.Postgres.URL.Empty() && c.Postgres.URLFile == "":
		l.mistake("ledger.url", "", "not set", "set RELAY_LEDGER_URL to postgres://user:password@host:5432/database?sslmode=verify-full; RELAY_POSTGRES_URL serves where the ledger is beside the outbox")
		return l.check("ledger")
	}
	return l.check("ledger", "postgres")
}
