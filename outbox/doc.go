// Package outbox is what an application imports: the event, and the two functions that write it. It also holds the
// words that the rest of the relay shares: Committed, LSN and Position. It imports no other package of the relay.
//
// # Guarantee
//
// An event written with Write stands in table outbox.events of the database that the business rows are in, and
// was written by the same transaction. So it is published if that transaction commits, and never if it does not: a
// rolled back transaction or savepoint publishes nothing, and a crash between two writes cannot happen because
// there is one. The write waits for nothing but PostgreSQL; whether a relay runs, and whether Kafka does, makes no
// difference to it.
//
//	 application                    PostgreSQL                           relay
//	┌──────────────────┐  BEGIN   ┌───────────────────────┐
//	│ business rows    ├─────────►│ your tables           │  write-ahead   ┌──────────┐
//	│ outbox.Write     ├─────────►│ outbox.events         ├───────────────►│ cdc,sink ├──► Kafka
//	│                  │  COMMIT  │                       │  log, after    └──────────┘
//	└──────────────────┘          └───────────────────────┘  the commit
//
// # Write side
//
//   - Order. Events of one call are rows in the order of the call, and records in that order for each partition key.
//     Between transactions the order is that of the commits.
//   - Identity. The event's ID is made once, when it is written, and is part of the row: whatever is published again
//     has the same ID. EventKey is the identity that the business gives; it is the same when the business does the
//     same thing twice, and a consumer's ledger makes one delivery of it.
//   - Refusal. What could never be published is refused when it is written, by Event.Validate and by the table's
//     constraints, which agree with each other. The writer learns of it while it can still do something. One rule
//     cannot be checked here: the size that the topic takes.
//   - Cost. One statement and one round trip for any number of events. From other languages the same is
//     SELECT outbox.publish(event_key => ..., ...), an event a call.
//
// # Read side
//
// Committed is an event as the relay got it from the log. Its bytes are the columns' own and are borrowed. Position
// says where in history it stands: incarnation, commit LSN, ordinal.
//
// # Non-obvious
//
//   - Write's parameters are arrays in PostgreSQL's text form, sent as text and cast by the server. So any driver in
//     any protocol mode can send them, with no type known to it, and the number of parameters stays twelve. It was
//     not slower than a statement with a parameter a value when measured.
//   - Payload is of type json and not jsonb because jsonb rewrites what it stores: numbers, spaces, the order of
//     members, duplicate names. Signatures over the payload stay valid.
//   - Write asks PostgreSQL's last status byte whether there is a transaction, so that a wrapper which only looks
//     like a pgx.Tx cannot write an event on its own.
//   - The ID is made by the application and not by the column's default: so Write can return it without RETURNING,
//     which would need a SELECT right that a writer has no other use for.
//   - OccurredAt defaults to the transaction's start, as now() does. It is a statement of the business, not a
//     position: nothing orders live events by it.
package outbox
