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
// wire.go is the socket, reader.go the owner of the connection, pgoutput.go the decoder, mapping.go says what of a
// table is read, tables.go looks whether it is there, published.go whether it was published all the time, layout.go, types.go and chunk.go make events of rows and emit.go
// of logical messages, watermark.go decides what may be confirmed, control.go writes it down, session.go takes the
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
// gives bytea as it is. Binary is a matter of the whole stream: where a column that is read has a type whose binary
// form is not known, the next session asks for text forms instead, which exist for every type. A type that comes up
// while rows flow ends the session for that; nothing of it was handed on.
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
//	starting ─▶ standby ─▶ backlog ─▶ streaming ─▶ draining ─▶ end
//	   ▲  │        │          │           │
//	   │  ▼        ▼          ▼           ▼
//	   └── database_unreachable, or a state that needs a human
//
// Whatever ends a session, the next one begins at the top: connect, check the server, the table, the publication
// and the slot, wait until the slot is free, start replication, take the owner token, open a sink. Faults that
// heal are tried again with backoff, from 100 ms to 10 s; states that need a human every 30 s. The states and what
// they mean are in package state.
//
// # What no slot brings
//
// A slot brings what commits after its consistent point. What is older, where a slot is made over a table with rows,
// and what lies between the last confirmed position and a slot that had to be made anew, is published from the table.
//
//	record says creating ─▶ slot, with its snapshot ─▶ one transaction in that snapshot: ─▶ session: ─▶ session:
//	                                                   outbox.backlog filled, confirmed      backlog     streaming
//	                                                   LSN, phase backlog
//
// What the snapshot sees is listed, what it does not see the slot brings: a row is in one of the two, never in both.
// Found in phase creating, a slot is dropped and made again, for its snapshot died with the connection. A session that
// finds phase backlog takes the slot first, as the lock, and talks to the server without reading. It hands the
// listed rows to a sink of their own by ordinal (position: LSN 0 and the ordinal), deletes entries as they are
// acknowledged, and when the sink is empty sets the phase and ends; the next session streams. Nothing else passes
// from one to the other, so there is nothing to get wrong at the seam. Rows of one transaction need not be neighbours
// in the list: it goes by time and ID, because commit order is not known any more.
//
// slot.go makes slots, list.go fills and reads the list, rows.go selects rows, backlog.go is the session's part,
// recover.go makes a slot anew.
//
// # Gaps
//
// slot_missing, slot_lost, slot_recreated and history_changed mean that the slot does not go on where the record
// stands. Nothing is streamed, and gap.go adds what lies between: positions, the timeline, and the rows of
// transactions that safe_xid does not vouch for. Recover is the way out of all four. It marks the record creating
// and keeps everything else in it, the confirmed LSN among it, which tells half a recovery from half a first start;
// then it drops the slot, makes it anew as above with a higher incarnation, and writes outbox.recoveries, all in the
// one commit that makes the slot count.
//
// safe_xid is a transaction ID: everything below it is confirmed. control takes the oldest transaction ID still
// running, then the WAL position, and lets the first count once the second is confirmed. When the slot is made it is
// the snapshot's own.
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
//   - A row is described by the table as it was when the row was written. Changing a column back does not change the
//     rows in between, so a required column that some rows lack stays table_mismatch until they are recovered from
//     the table.
//   - A table that leaves the publication is not heard of in the stream: inserts go silent. So tables and publication
//     are looked at every 10 s while streaming. One that came back meanwhile is published by another catalog row than
//     before; the record keeps which it was, and what was over by then (published.go). The server describes a table
//     again before the first row after a change, so that row waits for a look: what was left out must not be overtaken.
//   - safe_xid vouches for transactions by their WAL position, which says nothing of rows that were not published. It
//     rises only together with a look at the publication that finds it unchanged.
//   - A table keeps its OID through renaming. What was written under another name is told by it.
//   - A domain comes with its own type's OID and an enum with one that only this database has. What they are is read
//     from the catalog when a session begins.
//   - Reads wait for 32 KiB or a millisecond while rows flow, because the server makes one send per row and waking
//     up costs more than decoding. A wait must end with silence, never only with the next row: the server may be
//     silent while it decodes what others write.
//   - A relay that is behind, by the server's own clock, gathers rows for up to 10 ms. Where CPU is short they come
//     slowly, and handing on each few of them, with requests of their own, takes the CPU that the server needs to send
//     more: without this a busy machine was seen to settle at a tenth of the throughput, with records sent one by one.
package cdc
