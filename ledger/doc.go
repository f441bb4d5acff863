// Package ledger makes one delivery of each business event to each recipient on each channel, however often the event
// comes: queues deliver at least once, schedulers find the same record again, workers crash after half of the work.
//
// # Guarantee
//
// A delivery is named by tenant, event key, recipient and channel, and a unique constraint of PostgreSQL holds one row
// for that name. Every way to a delivery goes through the row: Deliver, Once, Run, RunReconciler, and the SQL
// functions that they and programs in other languages call.
//
//   - Once: exactly once, where the effect is a row of the ledger's own database.
//   - Deliver and Run: an effect outside (mail, push, a webhook) begins at most once for each stamp of BeginEffect. A
//     worker that dies after the stamp leaves the row uncertain, and the channel's policy decides: hold and probe never
//     send again on their own, resend repeats under the same provider key.
//   - Whatever comes second is answered with an Outcome that says so. A duplicate is neither an error nor a success.
//
// docs/delivery-guarantees.md says where "exactly once" is true and where it is not.
//
// # One delivery
//
//	Reserve ──► Eligible? ──► BeginEffect ──► effect ──► Complete        each call a transaction of its own,
//	   │           │ no           │             │ error                  none open during the effect
//	   │           ▼              ▼             ▼
//	   │         Skip        lease short:     Fail(retry | permanent | ambiguous)
//	   ▼                       Release
//	an outcome that says why not
//
// # State machine
//
//	              ┌────────────── release ───────────────┐
//	              ▼                                      │
//	(none) ──► pending ── reserve, claim ──► reserved ◄──┤ renew, begin
//	  │           ▲                          │  │  │  ▲  │ takeover when the lease is over
//	  │ reserve   │ redrive                  │  │  │  └──┘ and no effect has begun
//	  └───────────┼──────────────────────────┘  │  └───────────── complete ──► delivered
//	              │            fail(retry)      │                                 ▲ ▲
//	              │        ┌────────────────────┤ begun and lost,                 │ │
//	              │        ▼                    ▼ or fail(ambiguous)              │ │
//	              │      failed ──────►    uncertain ────── resolve ──────────────┘ │
//	              │        │  ▲  reserve,       │                                   │
//	              │        │  │  claim: as      └── resolve: failed, dead           │ late success: from anywhere
//	              │        │  │  pending                                            │ but delivered and skipped,
//	              │        ▼                                                        │ unless a newer holder began
//	              └────  dead (attempts used up, permanent)     skipped (not eligible, predecessor)
//
// Machine returns it as data, docs/ledger.md has the table.
//
// Every hand-out of a row has a fence, a number that rises. Calls name id and fence, and the database tests both with
// the state, so a worker that was taken over from can change nothing, with one exception: a success is a fact. It is
// taken late if the new holder has not begun, and the new holder is fenced off. That prevents the duplicate.
//
// # Ownership
//
// A Ledger starts no goroutine. Deliver and Run own one for each reservation in work, which renews the lease at half of
// what is left, and end it before they record the effect's end. Run owns its workers and returns after the last.
//
// # Failure
//
//   - The database cannot be reached before the effect: nothing is sent. Deliver returns no outcome and an error.
//   - BeginEffect's answer is lost: it is asked again. AlreadyBegun is then our own stamp, for nobody else has our fence.
//   - The end cannot be recorded: Uncertain and ErrNotRecorded; when the lease ends the row itself is uncertain.
//   - Eligible fails: Failed, retried. It fails closed.
//   - A function of a Handler panics: Failed before the effect, an ambiguous failure in it. The panic is returned as a
//     *PanicError and not raised again, see there.
//   - Conflicts (40001, 40P01) are repeated where the ledger owns the transaction, and are the caller's elsewhere.
//
// # Non-obvious
//
//   - The functions need READ COMMITTED: a snapshot from before a concurrent delivery would hide it. On a pool whose
//     sessions default to another level the ledger begins its own transactions, after the first refusal.
//   - Deadline is this process's monotonic clock, taken before the call that gave the lease; the database's clock is
//     never compared with it. A machine that is suspended may not count the time: then only the fence protects, and an
//     effect that was begun before runs late. Nothing in a ledger closes that; the provider's key does.
//   - A probe that answers "not sent" is believed. If the request is still on its way, it arrives after the second one;
//     again only the provider's key tells.
//   - ClaimDue runs under a context that outlives Run's for a moment: a claim whose answer is lost holds its rows until
//     their leases end.
//   - Deliver stamps on channels of mode simple too, where nobody asks for it: the stamp makes the difference between
//     "may be repeated" and "must be looked at", and the channel's policy says which.
//   - Attempts are counted when a row is reserved, not when it fails, so an event that kills its worker becomes dead.
//
// # Why not a lock
//
// An advisory lock ends with its session, so it says nothing about what a dead worker did; a row lock held during the
// effect is a transaction open for as long as a mail server takes. A lease with a fence costs one more update and
// leaves a trace (2026-11-30).
package ledger
