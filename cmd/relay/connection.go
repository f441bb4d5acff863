package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// connection is how to reach one database: the settings of a section that have the same names in each.
type connection struct {
	section          string // postgres or ledger
	url              Secret
	urlFile          string
	passwordFile     string
	allowInsecureTLS bool
}

func (p *PostgresConfig) connection() connection {
	return connection{"postgres", p.URL, p.URLFile, p.PasswordFile, p.AllowInsecureTLS}
}

// validate reads the secret files as connecting will, so that it fails now and not in the night.
func (c connection) validate(add addMistake) {
	key := func(name string) string { return c.section + "." + name }
	name, dsn := key("url"), c.url
	switch {
	case c.url.Empty() && c.urlFile == "":
		add(name, "not set", fmt.Sprintf("set %s to postgres://user:password@host:5432/database?sslmode=verify-full, or use %s", envName(name), key("url_file")))
		return
	case !c.url.Empty() && c.urlFile != "":
		add(key("url_file"), name+" is set too", "keep one of them")
		return
	case c.urlFile != "":
		name = key("url_file")
		var err error
		if dsn, err = readSecretFile(c.urlFile); err != nil {
			add(name, err.Error(), secretFileHint(err))
			return
		}
	}
	if c.passwordFile != "" {
		if _, err := readSecretFile(c.passwordFile); err != nil {
			add(key("password_file"), err.Error(), secretFileHint(err))
		}
		if hasPassword(dsn.Reveal()) {
			add(key("password_file"), name+" has a password too", "keep one of them")
		}
	}
	conf, err := parseDSN(dsn.Reveal())
	if err != nil {
		hint := ""
		var d *dsnError
		if errors.As(err, &d) {
			hint = d.Hint()
		}
		add(name, errText(err), hint)
		return
	}
	if hosts := unverifiedHosts(conf); len(hosts) > 0 && !c.allowInsecureTLS {
		add(name, fmt.Sprintf("the connection to %s would not verify the server", strings.Join(hosts, ", ")),
			fmt.Sprintf("add sslmode=verify-full (and sslrootcert=/path/ca.pem for a CA of your own), or set %s: true", key("allow_insecure_tls")))
	}
}

// connConfig reads the secrets anew and returns how to connect. Its errors are safe to print.
func (c connection) connConfig() (*pgx.ConnConfig, error) {
	dsn := c.url
	if c.urlFile != "" {
		var err error
		if dsn, err = readSecretFile(c.urlFile); err != nil {
			return nil, err
		}
	}
	conf, err := parseDSN(dsn.Reveal())
	if err != nil {
		return nil, err
	}
	if c.passwordFile != "" {
		password, err := readSecretFile(c.passwordFile)
		if err != nil {
			return nil, err
		}
		conf.Password = password.Reveal()
	}
	return conf, nil
}
