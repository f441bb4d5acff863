// Package inbox serves people their notifications: the list in ledger.notifications over HTTP, and a stream of
// server-sent events that says at once when there is more.
//
// # Guarantee
//
// The list is the truth, the stream is that list, sent as it grows. A client that lists what is above the last id it has,
// and then opens a stream from the last id that it has now, misses nothing; one that drops ids it has shows nothing
// twice. A stream without a last id begins at the present.
//
// That holds because ids are shown in their order and only up to where no transaction can add one any more, see
// ledger.notifications_settled. A notification appears when the transactions that began to write theirs before it have
// ended.
//
// # A notification's way
//
//	channel database ──► ledger.notifications ◄── list, by id ◄─── stream of its recipient ──► browser
//	channel broadcast ─► NOTIFY ──► listener ──► feed ── who has something new? ──┘
//	                                poll ──────►
//
// The listener and the poll only make the feed look sooner. The feed reads which recipients the new rows are for and
// pokes their streams; each stream reads its own rows from where it is. So nothing is queued for a client: one that is
// slow costs a connection until a write takes too long, and then it is dropped and resumes.
//
// # Who may see what
//
// A token says for whom the application signed it and until when; the rows are asked for by its tenant and recipient,
// never by what the client says. It comes in the header Authorization, in the query (EventSource can set no header) or in
// a cookie. Nothing here logs a request.
//
// # Non-obvious
//
//   - A bound on settled ids stays true for ever, so the highest one known is used. Asked twice, the database may answer
//     a lower one.
//   - The bound is raised before the feed asks whom the rows are for, and a stream joins before it reads the bound. What
//     the feed did not match to a stream is then below the stream's first bound.
//   - Through a pooler in transaction mode LISTEN hears nothing; the poll is what works then.
//   - A few queries at a time, so that browsers do not take the connections that delivering needs.
package inbox
