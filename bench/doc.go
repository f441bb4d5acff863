// Command bench measures the relay side by side with what could be had in its place, on one machine and in one run.
//
//	go run ./bench drain   --systems floor-receive,floor-pipe,relay,debezium --rows 1000000 --k 1,10,1000 --repeats 3
//	go run ./bench latency --systems none,floor-pipe,relay,debezium --rate 500
//	go run ./bench memory  --systems relay
//	go run ./bench ledger  --rows 20000
//	go run ./bench write   --rows 20000
//	go run ./bench check   --baseline bench/baseline.txt < output-of-go-test-bench
//
// It needs Java for the broker, and Maven once; both servers are its own, on loopback, and gone when it ends.
// Progress goes to standard error, the table to standard output; with --json one JSON object is the last line.
//
// # What a run of drain is
//
// Rows are written once, k a transaction, behind a slot that nobody reads: the base. Each run copies it, because a
// slot cannot be rewound, and makes a topic of its own. The clock runs from the start of a system's process to the
// moment at which a consumer that shares no code with any system has seen every id; floor-receive, which publishes
// nothing, says itself when it has received the last row. After the clock has stopped the topic is read a second
// time, and every record is held against the row it must have come from: each id once, one partition a key, the
// rows of a key in commit order, value bytes as written. Systems take turns, run by run, so that what else the
// machine does falls on all of them.
//
// # What the figures mean
//
// Server, broker, system and consumer share the machine. Ratios between systems of one run carry over to another
// machine; rows a second do not. "others" is what processes outside the bench took meanwhile, in cores: runs with
// much of it are to be thrown away. CPU seconds move less with it than the wall clock. Each figure is given as
// minimum, median and maximum; with one repeat the three are one.
//
// # Systems
//
//   - floor-receive reads the stream as cheaply as a client can and throws it away: the walsender's own limit.
//   - floor-pipe is the loop that pglogrepl's example suggests, with franz-go behind it: no retries, no recovery, no
//     check of anything. What a day's work gives.
//   - relay is the shipped binary in its default configuration.
//   - debezium is Debezium's embedded engine with the outbox router and a producer of Kafka's own, tuned
//     (debezium/Relay.java), without the cost of Kafka Connect.
//   - go-pq-cdc-kafka is reported as absent where its module cannot be had, never guessed.
//   - none, in latency, is no system: what a commit costs with nobody reading.
//
// # Non-obvious
//
//   - The table, the publication with its column list, and the base slot are made by relay migrate up: every system
//     reads the same stream.
//   - The relay would take a copied slot for one made by somebody else and refuse or skip what is older: the copy
//     needs its row in relay_state.
//   - A copied slot keeps the base's restart LSN, so runs after the first also read past what earlier runs wrote
//     behind the rows. The clock stops before that.
//   - The consumer's own CPU counts in "consumer"; floor-receive has none to share the machine with.
package main
