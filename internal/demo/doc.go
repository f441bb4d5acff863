// Package demo plays a small shop on servers of its own and checks a relay by what arrives: PostgreSQL as a child
// process, a Kafka-compatible broker in this process, writers, and a consumer that trusts nobody.
//
//	writers ──► PostgreSQL ──► the relay ──► broker ──► reader
//	   │        shop.orders                               │
//	   │        outbox.events                             ▼
//	   └─────────── what was sent to commit ──────────► tally ──► verdict ◄── shop.order_history
//
// The relay is a func that the caller gives, so that this package knows none: the command gives the one that relay
// run runs, a test may give one that cheats.
//
// # What is checked
//
// Writers change orders, each change with its event, and commit, roll back, roll back to savepoints and release
// savepoints in turn. The truth is read at the end from the shop's own table order_history, which has a row for each
// committed change with the ID of the event that belongs to it; the outbox table has no say in it. The reader has
// read to the end of every partition by then, after the relay has stopped. So
//
//   - lost is a committed change without a record,
//   - a ghost is a record that no committed change explains,
//   - a duplicate is a record whose event ID was read before,
//   - out of order is a record that follows one of a later version of its order.
//
// Only the number of changes rolled back is the writers' word: a database does not remember them.
//
// # Life
//
// Run makes everything and removes everything, however it ends: done, told to stop, failed, or crashed in one of its
// own goroutines. Each goroutine belongs to the crew, which turns a crash into the end of the others and crashes the
// caller's goroutine after that, where deferred functions remove the servers. A crash in a goroutine of the relay's
// own is beyond reach: the kernel ends PostgreSQL with us, and the next Run removes its directory.
//
// # Where more would go
//
// A step of the play is a method of play, in the order of play.go; what it tells goes through Listener, what it
// finds into Summary. Somebody who acts on the servers meanwhile is one more member of the crew.
//
// # Non-obvious
//
//   - An event counts as in flight from before its COMMIT is sent, since it may arrive before the answer does.
//   - Orders to change are picked by SKIP LOCKED: no writer waits for another, so no deadlock is possible, and
//     changes of one order by different sessions follow each other closely.
//   - The password is random: on a machine with several users, a server that trusts whoever connects would give
//     them a shell as its owner.
//   - Broker and tally keep everything in memory; that is why MaxEvents exists.
package demo
