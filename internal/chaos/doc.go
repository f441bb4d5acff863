// Package chaos is what end-to-end tests need to catch a relay that loses, invents, changes or reorders events: a
// workload that knows what it committed, and a checker that knows what a topic may hold.
//
// # Truth
//
// A client that was cut off does not know whether its COMMIT took effect, so nothing that a client remembers is
// believed. Each transaction writes, beside its business rows and its outbox rows, a row of chaos.truth per event:
// the event's ID, its aggregate, its version and a digest of the record that it must become. What committed is what
// stands in that table when the writers are gone:
//
//	lock aggregates ─▶ version+1 ─▶ entries, outbox.events, truth ─▶ COMMIT, ROLLBACK, PREPARE, cut off, ...
//	                                       │                │
//	                              relay ─▶ topic ──▶ Check ◀── Truth
//
// An aggregate's row is locked from before its version is read until the transaction ends, so versions of one
// aggregate are in commit order by construction, without a gap. That is what Check holds the topic against.
//
// # What a topic may hold
//
// Every event of the truth, as written (else lost or changed), and nothing else (else ghost). In each partition the
// first occurrences are in commit order (else order). An event may come again only as part of a repeated run: a
// run starts anywhere in what was there before, goes on without leaving one out, and reaches the end before
// anything new comes. All events of an aggregate are in one partition (else moved), and an event's relay_position
// is the same wherever it stands and rises with the first occurrences (else position). How many runs and repeated
// records there were is counted; a test that causes none says so, and gets a violation for each (repeated).
//
// # Seeds
//
// A seed fixes what each writer tries to do, not how the writers interleave nor what a fault hits. It reproduces
// inputs; a failure that needs a certain interleaving may take several runs.
package chaos
