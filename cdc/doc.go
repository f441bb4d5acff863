// Package cdc reads an outbox table from PostgreSQL's write-ahead log: committed events, in commit order, and a
// position that is confirmed only when they are safe elsewhere.
//
// # Guarantee
//
// Every event of a committed transaction is handed to the Sink at least once, none of an aborted transaction or
// savepoint ever is, and what is handed on comes in commit order. After any failure, of this process, of the
// server or of the network, the stream resumes at the confirmed position: what follows is a contiguous run from
// there, so an event may come again but none is passed over and none overtakes another. A clean stop confirms
// everything acknowledged, so nothing comes again.
//
// # One event's way
//
//	PostgreSQL ──wire──▶ reader ──chunk──▶ dispatch ──▶ Sink.Accept
//	    ▲                  │ ▲                             │ acknowledged
//	    │ flush position   │ │ flush                       ▼
//	    └──────────────────┘ └── control ◀── position ── watermark
//	                              │
//	                              └──▶ outbox.relay_state (first), then the reader says it
//
// wire.go is the socket, reader.go the owner of the connection, pgoutput.go the decoder, layout.go and chunk.go
// make events of rows, watermark.go decides what may be confirmed, control.go writes it down, session.go takes the
// slot and holds these parts together, stream.go goes round for ever.
//
// # Ownership
//
// A session has five goroutines. The reader alone reads from and writes to the replication connection: pgconn and
// pglogrepl are used to open it and then left, because their status update does not take the lock that their read
// holds. dispatch alone calls Accept, which may block for as long as the broker likes; the reader then stops
// reading rows, and TCP stops the server, but it goes on talking: status updates leave on its own timer, three
// times within wal_sender_timeout. control alone uses the ordinary connection. The sink has its own goroutines
// behind Run. The session's own waits for the first of them to end and then ends the rest.
//
// # Protocol
//
// pgoutput, protocol version 1, streaming off: the server sends a transaction only once it has committed, and
// keeps a large one on its own disk meanwhile. Rows pass on as they arrive, so memory does not depend on the
// transaction's size. Messages are on, because a position counts them; binary is on, because it is cheaper and
// gives bytea as it is.
//
// # Confirming
//
// The end LSN of a transaction may be confirmed when every event of it and of all before it is done. control
// writes it to relay_state, at most once a second and only because events were acknowledged, and then the reader
// says it to the server: a slot that is found ahead of relay_state was moved by somebody else. A keepalive's
// position counts only when no transaction is open, queued or in flight; it is written only when it is 1 MiB
// further and 10 s have passed, so that a quiet outbox on a busy server pins no WAL and a quiet server is not
// kept busy by the relay's own writes.
//
// # States of a stream
//
//	starting ─▶ standby ─▶ streaming ─▶ draining ─▶ end
//	   ▲  │        │           │
//	   │  ▼        ▼           ▼
//	   └── database_unreachable, or a state that needs a human
//
// Whatever ends a session, the next one begins at the top: connect, check the server, the table, the publication
// and the slot, wait until the slot is free, start replication, take the owner token, open a sink. Faults that
// heal are tried again with backoff, from 100 ms to 10 s; states that need a human every 30 s. The states and what
// they mean are in package state.
//
// # The slot is the lock
//
// PostgreSQL lets one walsender use a slot. A relay that finds it active is a standby: it looks at
// pg_replication_slots once a second and does not try START_REPLICATION, for each refused try is an error in the
// server's log. Having got it, a relay writes its owner token into relay_state, and every later write is
// conditional on it, so that one that was paused and overtaken changes nothing when it wakes.
//
// # A server that wants to stop
//
// PostgreSQL does not shut down until a walsender's client has confirmed everything. The relay must not make it
// wait for Kafka: it lets go of the stream when its ordinary connection is told that the server goes down, or when
// the server asks for answers again and again.
//
// # Not obvious
//
//   - A row's own LSN is used for nothing. Rows of one COPY share it, and so may a COMMIT and the next BEGIN. The
//     position is the commit LSN and an ordinal; what is confirmed is the end LSN.
//   - Flush position 0 means "everything" to some clients and servers; it is never sent.
//   - The publication is made before the slot. Decoding looks the publication up as it was at that point of the
//     WAL; one made later does not exist there, however often it is made again.
//   - The slot's position is read before relay_state. In the other order a confirmation in between would look like
//     a slot that was moved.
//   - PostgreSQL 14 sends transactions without events too, among them the relay's own writes. They advance the
//     watermark and are no reason to write.
//   - A stream may be silent for as long as the server decodes a large transaction of other tables. Before it is
//     given up the server is asked whether the walsender is still there.
//   - Reads wait for 32 KiB or a millisecond while rows flow, because the server makes one send per row and waking
//     up costs more than decoding. A wait must end with silence, never only with the next row: the server may be
//     silent while it decodes what others write.
package cdc
