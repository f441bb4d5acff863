// Package migrations holds the database's side of the relay as SQL files, and applies them.
//
// # Guarantee
//
// The files go forward only, and applying one again changes nothing. So it does not matter who applies them: Up
// with its table of versions, or psql by hand, or one after the other, in any order. Each file is applied whole or
// not at all. Several processes may call Up at the same moment.
//
//	outbox/00001_...sql   one folder a set; a set is a schema, for databases may hold the one and not the other
//	ledger/00001_...sql   the delivery ledger: tables, settings, arguments, rules, then the calls in the order of a
//	                      delivery's life
//	roles/relay.sql       rights of the roles, for psql: who may what is the operator's decision, so Up leaves it alone
//	roles/ledger.sql      the same for the ledger's worker, operator and reader
//
// # Adding a file
//
// The next number, idempotent statements (IF NOT EXISTS, CREATE OR REPLACE, COMMENT ON), one StatementBegin block
// round all of them, every name with its schema or resolved in pg_catalog, a comment on every table and column,
// nothing granted to PUBLIC, and nothing that holds a lock on outbox.events for longer than an instant. A published
// file is never edited.
//
// # Failure
//
// Every error is an *Error with the file, what was applied before it, and a hint where the cause is a known one.
// A table that stays locked for 5 s fails the migration rather than holding up all writers behind it; lock_timeout
// in the connection's settings overrides that. If the process dies, the session's end releases the lock, and the
// file's transaction is rolled back.
//
// # Non-obvious
//
//   - The advisory lock is taken before goose is asked anything: goose makes its version table outside its own lock.
//   - The version table of a set is in the set's schema, outbox.migrations, so Up makes the schema before the first
//     file does.
//   - The relay itself never migrates with its own role; that role may create nothing.
//   - Defaults, constraints and functions call functions of schema outbox, which nobody may execute by default: a
//     role that inserts into outbox.events needs EXECUTE on uuid_v7, headers_valid and headers_fault too.
//     roles/relay.sql grants it.
//   - The ledger's functions run as their owner, so that nobody needs a right on the tables they write; the owner is
//     not held to row security, so they test the tenant themselves, by session_user.
//   - ledger.notification_dispatches has no CHECK constraints: each statement would parse and plan them anew, which
//     took longer than the insert. The functions are its only writers, and the tests hold every row against the rules.
//   - A function in SQL that is not inlined is planned at each call, so those that touch tables are PL/pgSQL. Functions
//     that take arrays force a generic plan, for planning with the arrays given took longer than the work.
//   - Queries of the ledger look rows up by LATERAL with LIMIT 1 and by subqueries: a plan kept from when an event had
//     few recipients must not read a million of them later.
package migrations
