package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ledgerNeed is the kind of right that a subcommand of relay ledger needs.
type ledgerNeed int

const (
	needReader   ledgerNeed = iota // the tables
	needOperator                   // decisions and housekeeping
	needOwner                      // settings
)

// defaultRole is how the script of migrate print --roles calls who has the right, unless told otherwise.
func (n ledgerNeed) defaultRole() string {
	switch n {
	case needOperator:
		return "ledger_operator"
	case needOwner:
		return "the owner of schema ledger"
	}
	return "ledger_reader"
}

// grantees finds who has the right in this database. Whoever may read dispatch_attempts may read all that is shown,
// and whoever may redrive may do all that is decided.
func (n ledgerNeed) grantees(ctx context.Context, conn *pgx.Conn) (roles string, err error) {
	const owner = `SELECT pg_catalog.pg_get_userbyid(nspowner)::text FROM pg_catalog.pg_namespace WHERE nspname = 'ledger'`
	const granted = `SELECT coalesce(string_agg(DISTINCT r.rolname, ' or ' ORDER BY r.rolname), '') FROM (
    SELECT c.relacl AS acl, c.relowner AS owner FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'ledger' AND c.relname = $1::text
    UNION ALL
    SELECT p.proacl, p.proowner FROM pg_catalog.pg_proc p
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'ledger' AND p.proname = $1::text
) o, pg_catalog.aclexplode(o.acl) a JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
WHERE a.grantee <> o.owner AND a.privilege_type IN ('SELECT', 'EXECUTE')`
	switch n {
	case needOwner:
		err = conn.QueryRow(ctx, owner).Scan(&roles)
	case needOperator:
		err = conn.QueryRow(ctx, granted, "redrive").Scan(&roles)
	default:
		err = conn.QueryRow(ctx, granted, "dispatch_attempts").Scan(&roles)
	}
	return roles, err
}

// explainLedger adds to an error of the ledger's database what to do about it.
func explainLedger(ctx context.Context, conn *pgx.Conn, need ledgerNeed, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	said := errors.New(pg.Message)
	switch pg.Code {
	case "3F000", "42P01", "42883", "42703": // schema, table, function or column is missing
		return &hintError{
			err:  fmt.Errorf("the ledger is not in database %q, or is older than this relay: %w", conn.Config().Database, said),
			hint: "apply it with relay migrate up --only ledger, or name its database with ledger.url",
		}
	case "42501": // insufficient_privilege
		if pg.Hint != "" { // the ledger's own refusal, which is about tenants
			return &hintError{err: said, hint: pg.Hint}
		}
		return &hintError{err: fmt.Errorf("role %q lacks a right: %w", conn.Config().User, said), hint: need.hint(ctx, conn)}
	case "25006": // read_only_sql_transaction
		return &hintError{err: said, hint: "this server is a standby or read only; name the primary with ledger.url"}
	}
	if pg.Hint != "" {
		return &hintError{err: said, hint: pg.Hint}
	}
	return said
}

// hint names the role that has the right in this database; it need not have the default's name.
func (n ledgerNeed) hint(ctx context.Context, conn *pgx.Conn) string {
	user := conn.Config().User
	roles, err := n.grantees(ctx, conn)
	switch {
	case err != nil || roles == "":
		return fmt.Sprintf("this needs %s: relay migrate print --only ledger --roles | psql makes the roles, then GRANT %s TO %q", n.defaultRole(), n.defaultRole(), user)
	case n == needOwner:
		return fmt.Sprintf("this needs the owner of schema ledger, %s", roles)
	}
	return fmt.Sprintf("this needs role %s: GRANT it TO %q, or log in as somebody who has it", roles, user)
}
