package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// dsnError says why a connection string was refused, in words that hold no part of the string: where its parts
// begin and end is exactly what a malformed one leaves open, so any part may be the password.
type dsnError struct {
	problem string
	hint    string
}

func (e *dsnError) Error() string { return e.problem }

// Hint says what to do about it.
func (e *dsnError) Hint() string { return e.hint }

// parseDSN reads a connection string. Its errors are *dsnError and safe to print; pgx's own are not, for they
// quote the string with a password that is masked only as well as can be guessed.
func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	if rest, isURL := cutScheme(dsn); isURL && ambiguous(rest) {
		return nil, &dsnError{
			problem: "the connection URL has an @ beyond the one that ends user and password",
			hint:    "percent-encode what is special in user, password and parameters: @ is %40, / is %2F, ? is %3F, # is %23, : is %3A",
		}
	}
	conf, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, safeDSNError(err)
	}
	return conf, nil
}

// safeDSNError replaces an error of pgx's parser. Only a file that could not be opened is named: it is the one
// cause that cannot be seen by looking at the string again.
func safeDSNError(err error) *dsnError {
	var path *fs.PathError
	if errors.As(err, &path) {
		return &dsnError{
			problem: fmt.Sprintf("the connection string names a file that cannot be read: %q: %v", path.Path, path.Err),
			hint:    "correct the path, or let the relay's user read the file",
		}
	}
	return &dsnError{
		problem: "the connection string cannot be parsed",
		hint:    "the form is postgres://user:password@host:5432/database?sslmode=verify-full, with special characters percent-encoded",
	}
}

// errText is the text of an error as it may be shown or logged.
func errText(err error) string {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return safeDSNError(err).Error()
	}
	return err.Error()
}

func cutScheme(dsn string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(dsn, "postgres://"); ok {
		return rest, true
	}
	return strings.CutPrefix(dsn, "postgresql://")
}

// ambiguous reports whether an unencoded character may have cut a password in two. A URL in order has at most
// one @, and no slash or question mark before it.
func ambiguous(rest string) bool {
	at := strings.LastIndexByte(rest, '@')
	return at >= 0 && strings.ContainsAny(rest[:at], "@/?")
}

// hasPassword reports whether the string itself carries a password, under whatever spelling. pgx's result
// cannot tell, for it also looks into PGPASSWORD and the password file.
func hasPassword(dsn string) bool {
	rest, isURL := cutScheme(dsn)
	if !isURL {
		return strings.Contains(strings.ToLower(dsn), "password")
	}
	if user, _, ok := strings.Cut(rest, "@"); ok && strings.Contains(user, ":") {
		return true
	}
	_, query, _ := strings.Cut(rest, "?")
	plain, err := url.QueryUnescape(query)
	return err != nil || strings.Contains(strings.ToLower(plain), "password")
}

// redactDSN rebuilds a connection string from its parsed parts: user, hosts and database. Nothing is copied
// from the string, so nothing that was not understood can come through.
func redactDSN(dsn string) string {
	conf, err := parseDSN(dsn)
	if err != nil {
		return redacted
	}
	user := url.User(conf.User)
	if hasPassword(dsn) {
		user = url.UserPassword(conf.User, "xxxxx")
	}
	u := url.URL{Scheme: "postgres", User: user, Host: strings.Join(hostPorts(conf), ","), Path: "/" + conf.Database}
	return u.String()
}

// quoted quotes a value for a person, unless it looks like a connection string that went into the wrong place.
func quoted(value string) string {
	if hasPassword(value) || strings.Contains(value, "://") && strings.Contains(value, "@") {
		return strconv.Quote(redacted)
	}
	return strconv.Quote(value)
}

func hostPorts(conf *pgx.ConnConfig) []string {
	list := []string{net.JoinHostPort(conf.Host, strconv.Itoa(int(conf.Port)))}
	for _, f := range conf.Fallbacks {
		if hp := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(list, hp) {
			list = append(list, hp)
		}
	}
	return list
}

// unverifiedHosts lists the hosts that a connection would reach over a network without being sure whom it
// talks to: every attempt counts, so sslmode prefer is found by its plain-text half. Unix sockets and loopback
// addresses are exempt.
func unverifiedHosts(conf *pgx.ConnConfig) []string {
	attempts := []*pgconn.FallbackConfig{{Host: conf.Host, Port: conf.Port, TLSConfig: conf.TLSConfig}}
	attempts = append(attempts, conf.Fallbacks...)
	var hosts []string
	for _, a := range attempts {
		if network, _ := pgconn.NetworkAddress(a.Host, a.Port); network == "unix" || isLoopback(a.Host) {
			continue
		}
		// verify-full is the only mode in which pgx leaves the checking of chain and name to crypto/tls.
		if a.TLSConfig != nil && !a.TLSConfig.InsecureSkipVerify && a.TLSConfig.ServerName != "" {
			continue
		}
		if !slices.Contains(hosts, a.Host) {
			hosts = append(hosts, a.Host)
		}
	}
	return hosts
}

// isLoopback reports whether a host name or address stays on this machine.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
