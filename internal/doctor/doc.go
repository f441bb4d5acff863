// Package doctor checks everything that a relay needs, before it runs and while it runs.
//
// Guarantee: it changes nothing and disturbs nobody. Its database session is read only, and each statement ends with the
// check's own time. It makes and moves no slot, takes neither the slot nor the owner token, opens one replication
// connection for IDENTIFY_SYSTEM and only while another walsender would still find room, takes no producer identity,
// produces nothing and makes no topic. It needs no more than the relay's own role and principal have, and says what it
// could not see with them.
//
// What a session of the relay refuses, doctor refuses in the same words, because it is the same code: cdc.Examination
// holds server, tables, publication, slot and record against each other as a session does, sink.Survey words a broker's
// errors as a lane does and judges topics as the relay's own notices do, and migrations.Grants reads the rights from
// the script that gives them.
//
// A step (run.go) is one look at something; it gives one check or several, each ok, warn or fail with what was seen and
// what to do. A step whose prerequisite failed is skipped, and says for want of what. Steps run one after another, in
// the order of a relay's start, each within a time of its own, and a connection that one of them lost is made anew for
// the next.
//
// Not obvious:
//
//   - A role without pg_read_all_stats sees of others' sessions that they have a transaction ID, and not since when. Where no
//     slot is there yet, each of them is told, for a new slot waits for it.
//   - A row that is too large may have been published under another limit, so it is a warning and no failure.
//   - Whether a slot is older than its publication is not recorded anywhere. What is known is the transaction that wrote
//     the publication's row, the oldest one whose catalog rows the slot still needs, and safe_xid, below which everything
//     is confirmed: a publication below one of the two was there before everything that the slot will bring.
//   - Kafka tells the right to write to a topic, and not the right to write with a transactional id; only using the id would
//     tell, and that fences whoever has it.
package doctor
