// Package deliver is a ready-made notification worker: it reads the relay's topics and delivers each business event to
// its recipients, by rules that a YAML file holds, through the delivery ledger.
//
// # Guarantee
//
// One delivery for each event key, recipient and channel, however often the event comes: from a scheduler that runs
// again, from a topic that is read from its beginning, from two groups that read it at once, after kill -9 at any point.
// Package ledger keeps that promise and says where it ends; this package keeps two of its own:
//
//   - An offset is committed only after the deliveries of what is before it are in the ledger, committed: no event is
//     forgotten between Kafka and the ledger.
//   - Nothing is sent because of an event alone. Right before each delivery the application's database is asked, and what
//     is not a clear yes is no: false skips, an error waits.
//
// # One event's way
//
//	topic ──► partition ──► registrar ────────► ledger ──────► pump ──► maker ──► channel
//	          fetch.go      register.go         (rows that     pump.go  attempt.go channel_*.go
//	          consume.go    rules, recipients   are due)       claims             Send, or Write
//	                        in chunks                          asks, delivers
//
// Registering and delivering meet nowhere but in the ledger. Registering goes in the order of the partition and is held
// up only by a database that is away, or by a rule that does not fit the schema: then the partition waits, and Stats
// say why. Delivering takes what is due, whoever registered it. So a channel that is slow or down holds up no partition
// and no other channel, a recipient that is slow holds up no other, and more processes deliver more, even where there
// is one partition.
//
// # Order
//
// Deliveries are registered in the order of the partition. A process begins those to one recipient on one channel one
// after the other, in the order in which they became due, unless one takes longer than a second: what waits behind it is
// given back then. Between processes there is no such order, and a retry comes later than what came after it.
//
// # Ownership
//
// New starts nothing. Run owns a goroutine for consuming, which owns those of the partitions for one generation of the
// group each, and for each channel one that claims and Concurrency that deliver. It returns after the last has ended.
//
// # Failure
//
//   - A process dies: what it had registered is delivered by others; what it had claimed is taken over when the leases
//     end, or uncertain where an effect had begun.
//   - A generation of the group ends: the partition's goroutine stops between two chunks, commits how far it is, and
//     the next owner reads on. What both register is known to the ledger.
//   - A record that cannot be handled is parked whole in ledger.parked_records, with a class, and the partition goes
//     on. Nothing is dropped in silence.
//   - A query is refused because of an event's values: that event is parked. Because of the schema, or rights: the
//     partition waits, for all events would be parked.
//   - The topic has lost what was not read yet: reading goes on where it begins, and Stats.Skipped counts.
//   - Told to stop: see Run.
//
// # Non-obvious
//
//   - What waits in memory under its lease is given back at half of it: whoever claims a row whose lease is over counts
//     another attempt, and a row that was never tried would die of waiting.
//   - Two pools, even for one database: a query that streams recipients keeps its connection while the ledger is asked
//     for another.
//   - A channel belongs to one rules file: its deliveries are claimed by whoever runs it, and one whose event type has no
//     rule there waits for a process that has one.
//   - A delivery in the ledger's own database asks for eligibility in the transaction that writes it, so FOR SHARE in
//     that query keeps what was looked at as it was.
//   - Content comes from the ledger, never from the topic: what is delivered a week later is what was remembered. The
//     first event of a key is remembered.
//   - Records of transactions are read whether those were committed or not. The relay's are in none; a topic that others
//     write to in transactions is not for this worker.
//   - kafka-go's Reader is not used, see fetcher; its balancers are not either, see spread.
package deliver
