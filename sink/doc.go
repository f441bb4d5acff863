// Package sink takes committed events and publishes each one to its Kafka topic, in commit order per key, without
// loss, and without a duplicate, also after the process was killed.
//
// # Guarantee
//
// An event is reported done once every in-sync replica of its partition has its record. Records of one partition
// stand in the order in which Accept was given their events. A fault that ends no session (a broker restart, a
// lost answer, a moved leader, a cut connection) adds no duplicate and changes no order: batches are idempotent.
// After a session that ended, the next one is given the unconfirmed events again. Those that had arrived are found in
// the topic and not published again, as long as what was published last is retained there, and routing and partition
// count are unchanged; otherwise they are there twice, counted, and none is lost. What an earlier owner of the slot
// still has under way cannot land behind what this session writes.
//
// # The way of an event
//
//	Accept: check ─ route ─ encode ──┬─ lane orders-0: [open batch] ─ batch in flight ─ acknowledged ─ done
//	        (one goroutine)          ├─ lane orders-1: …
//	                                 └─ lane users-0:  …            (one goroutine each, owned by Run)
//
// The event is encoded once, from the borrowed bytes of the write-ahead log into the open batch of its partition;
// a batch is encoded records and the sequence numbers of their events. A lane has one batch in flight. What comes
// meanwhile fills the next: an idle lane sends at once, a busy one sends full batches, and there is no linger to
// set. Accept blocks when Config.WindowBytes are accepted and not acknowledged.
//
// What record an event becomes is its Route's to say. A topic comes from the event's topic column, if the route's
// Topics allow it, else from its template or regular expression. The partition is the one that Java's default
// partitioner gives to the key, unless a column names it. A changed partition count is taken when everything
// of the topic is acknowledged, so that no key has records under way in two partitions, and told to Config.Notice and in
// Stats.Grown. It only grows: a topic
// deleted and made again with fewer partitions is topic_missing for the missing ones until the next session.
//
// A record's value is the payload column's own bytes; NULL is a tombstone, the empty value is not. An envelope is
// written round these bytes and leaves them as they are. A record's timestamp is when its batch was first sent, not the
// event's time, which brokers would hold against retention; a route may ask for the time of a column all the same, and
// such records have batches of their own. Its headers are, in this order, id, event_key, event_type, aggregate_type,
// occurred_at, tenant, relay_position, those of the headers column, and what the route places; NULL makes no header,
// nor does an empty tenant. occurred_at is RFC 3339 in UTC; infinity and other forms pass as they are.
//
// # Who owns the partition
//
// Open takes a new epoch of the producer identity that belongs to the transactional id relay-<source>. Batches are
// idempotent and not transactional; the transactional id serves only to raise the epoch. A broker that has not
// heard of the new epoch on a partition still takes the old one there, so before the first batch of each
// partition comes the fence: a transaction over the partition, aborted at once. Its abort marker carries the epoch
// into the partition's log. Only one transaction per producer can be open, so fences run one at a time and lanes
// that ask meanwhile share the next.
//
// The coordinator answers EndTxn before it has written the markers. Asked again, Kafka 4.3.1 answers
// CONCURRENT_TRANSACTIONS (51) until they are all written (300 partitions: 30 to 120 ms), then no error; that
// answer is waited for. Sequence numbers go on across a repeated fence of the same epoch. An aborted transaction
// without records is invisible to readers of either isolation level but takes one offset.
//
// Brokers must be Kafka 2.5 or newer: older ones forget an idle producer and refuse its next sequence.
//
// The identity is used at least every KafkaConfig.FenceEvery before a batch is sent, so the coordinator never
// forgets an owner that sends. If it has forgotten one that was silent for a week, the answer is
// INVALID_PRODUCER_ID_MAPPING before anything was sent, and the session begins anew.
//
// # What an earlier session has published
//
// After the fence of a partition, and before its first batch, comes the resume check. The log up to our marker is
// final, so what it says stays true.
//
//  1. Read backwards from the marker, in growing windows, to our last live record: one whose relay_position has our
//     source and that is no replay. W is its position. If there is none, or W is below Config.ResumeLSN, nothing
//     can come twice.
//  2. Find, backwards in growing strides and then by halving, a place in the log before which our records are below
//     that LSN and behind which they are not. A backlog, whose positions have no LSN, looks for the first ordinal
//     that is left.
//  3. Merge that run with the lane's events. A record below the event is stepped over. Same position, ID, key and
//     value: the event is done. Anything else ends the check, as does an event above W.
//
// Once the check has ended every event of the lane is produced, published before or not. So an event is skipped only
// if everything before it in the lane was, a repeated run is always carried to its end, and the last record of a key
// is its newest, whatever compaction or retention have taken out of the log. An end other than at W is counted in
// Stats.Undecided; so is a search that has read 64 MiB of a partition in steps 1 and 2 and does not know.
//
// An older copy of the database that is put back writes other events to positions that are published already. They
// differ in ID or value, so they are produced.
//
// The check rests on these: events go in stream order per lane; a new partition count is taken only when nothing of
// the topic is in flight; an event is settled only when every event of its lane before it is.
//
// Records are read one at a time out of batches that are decompressed as they are read, so memory does not depend on
// what others write to the topic. A few lanes read at a time, and what lanes have read ahead when they wait for
// events is kept up to 2 MiB in all, and read again beyond that.
//
// # Other publishers
//
// What lanes need of a broker is Publisher, one file; package sinktest has it as tests, which Kafka, Webhook and Stdout
// pass. A Fault is how a publisher says what went wrong. Webhook posts events singly, in CloudEvents' binary mode, over
// as many partitions as it makes requests at a time; it remembers in the batch how far it has come, so that a batch that
// is sent again, or split for an event that the receiver refuses, repeats none that was taken. It has neither fence nor
// resume check: a receiver can refuse nobody's late request and cannot be read back, so it delivers at least once.
//
// # What an error means
//
// verdictOf is the one place that decides; TestVerdict walks this table.
//
//	class      what                                              codes                      then
//	transient  leader moved or missing                           5 6 8 9 74 75              same bytes again, 20 to 500 ms apart, for ever
//	transient  answer lost, open                                 7 13 20, I/O, unknown      the same; the batch may be there, so nothing else may follow
//	transient  too few replicas                                  19                         the same
//	transient  coordinator not ready, fence under way            14 15 16 48 51 55          the same
//	missing    topic or partition does not exist                 3 100 103                  the same, up to 3 s apart; state topic_missing
//	denied     certificates or credentials do not fit            TLS, files                 the same as the next
//	denied     our principal may not                             29 30 31 33 34 53 54 58    again every Config.Recheck; state broker_denied
//	poison     the record can never be taken                     10 17 18 32 87             split; alone: state halted, again every Config.Recheck
//	success    duplicate of a batch whose answer was lost        46                         acknowledged
//	fatal      duplicate of a batch sent for the first time      46                         Run returns ErrSequence
//	fatal      the broker's sequence or producer does not fit    45 49 59                   Run returns ErrSequence
//	fatal      another owner has the identity                    47 90                      Run returns ErrFenced
//
// After a fatal error the start-up path is the way on: resume from the slot, take a new epoch, fence. Failures of
// Config.UnreachableAfter in a row raise broker_unreachable, once; success clears it.
//
// # Poison
//
// A route's policy says what becomes of an event that cannot be published: halt, park or hold-key.
//
// halt. An event that can be seen to be poison before its record has a place (no or empty key, a topic that is not
// allowed or not a name, bad headers, too large) stops Accept: whatever is behind it in the stream waits, whatever
// its key, and what came before is still published. It may have no partition, and anything behind it may have its
// key, so this is the simplest stop that keeps the order of every key. ParkHalted parks it by request. Told to stop, a
// halted sink finishes what can be finished and ends; the event comes again.
//
// park. The event becomes a letter: its whole record, and why. The parker writes letters, many in one round trip, in
// the order in which they came, and an event is done when its letter is committed. Whatever is behind it in its lane is
// sent only then; other lanes do not wait, and nor does Accept. An event without a lane (no key, no topic) holds up
// nobody. While the database is away letters wait as batches wait for the broker, in the window.
//
// hold-key. The same, and every later event of the topic and key becomes a letter too: state held. Who passes a key's
// events decides about it, and that is its lane, so nothing has to be agreed on: the lane notes the key when it parks,
// takes the events of held keys out of each batch before it is first sent, and publishes the letters of a key that is
// released between two batches of its own, in their order; then the key is free and the batches go on behind. Events
// below the position of the first letter are not held: they were published before, and come again. Keys are remembered
// as digests, a hundred thousand at most; beyond that the policy is halt. A key without a lane, for its topic cannot be
// one, is held by Accept.
//
// A letter settles its event for ever, whatever its state, and only a request publishes it. Which letters the stream may
// bring again is read when the session begins, a page at a time beside the stream, for both are in the order of
// positions. Without any the stream pays nothing.
//
// A letter whose row is committed may have a copy in its route's dead-letter topic, beside everything: it counts neither
// in the window nor in Drain, has bounds of its own, raises no state, and is given up where a lane would wait for ever. Its
// lanes carry nothing else, for no event may go to such a topic, so nobody waits behind one that hangs, and they have no
// resume check. Whether it was published is not kept: a column for it would be another write and another recovery for
// what nobody may rely on.
//
// A topic that does not exist stops Accept likewise, until it is there: without its partition count no event of it
// has a place.
//
// A batch that the broker refuses is split until the guilty record stands alone; the records before it are
// published, and it is treated by its route's policy. With halt its lane stops. The other lanes go on until the window is full. Nothing behind it on its
// partition is acknowledged. A lane whose large batches were refused makes smaller ones from then on.
//
// # On request
//
// Replay and Requeue put records into the lanes from other goroutines than Accept's: batches of their own, marked with
// the header relay_replay, outside the order of live ones. They count in the window and in Drain, wait for a fence as
// any batch does, and are settled by their job instead of the stream. One that is refused is refused, and halts nothing.
// They are no part of the resume check: where they go in front of a lane's check, the end of the partition is noted
// before, so that the check does not look for its way through them.
//
// # Non-obvious
//
//   - Same bytes: the broker recognises a batch by epoch, sequence and count alone. Other records under a sequence
//     that may be taken would be acknowledged and dropped. So a batch is sealed once, and a refused batch may be
//     split only because a refusal takes no sequence numbers.
//   - A cancelled request stays on kafka-go's connection until its deadline. The sockets are ours, so that the end
//     of a session cuts them; and a batch with an unanswered try is never recycled, for a connection that was
//     given up may still read it.
//   - kafka-go reads its list of topics when it makes a pool of connections and its metadata only by time. A
//     Transport is therefore replaced when a topic comes in or a leader error says that the view is outdated.
//   - A view of the cluster that could not be read looks to kafka-go like one without topics. The metadata request
//     tells the difference.
//   - A Transport that is asked after CloseIdleConnections connects anew, and nobody would close that; the last
//     user of a replaced one closes it again.
//   - A batch is compressed when it is sealed, so the same bytes go out again, and the buffer is kept apart from the
//     records: a batch that is refused is split from these.
//   - kafka-go decompresses all of a fetched answer at once, and loses the error of a ListOffsets request that it
//     has split. Both requests are written and read here, on its connections.
//   - RawProduce with a used-up reader is a corrupt request, with a nil one it is a success without a record. Each
//     try has a new reader.
//
// # Why not …
//
// Why not kafka.Writer (2026-11): it sends the next batch after a failed one, lingers, cannot be idempotent, and
// gives up. We use its package's transport and codec only.
//
// Why not one request at a time for all partitions of a broker (2026-11): the slowest partition would set the pace
// of all. A courier has a few requests under way, packs into the next what came meanwhile, and sends what was late
// by itself. With few partitions each batch has a request of its own, as before; five hundred need a dozen connections.
//
// Why not kafka-go's TLS and SASL (2026-11): it tells a refused password from a lost connection only sometimes, sets
// no deadline for the exchange, and its SCRAM is another dependency. The door is two hundred lines.
//
// Why not a contiguous buffer a batch (2026-11): growing it copies, and sizing it for the largest batch costs a
// megabyte for every quiet partition. A batch is chunks of whole records.
package sink
