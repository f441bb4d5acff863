package cdc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// session is one hold of the slot, from START_REPLICATION to whatever ends it.
type session struct {
	s         *Stream
	db        *pgx.Conn
	record    Record
	owner     string
	source    string
	pid       uint32
	version   int // of the server
	published published
	watermark *watermark
	reader    *reader
	sink      Sink
	backlog   *backlog // nil: the session streams
}

// runSession goes the whole way once: connect, check, wait for the slot, take it, stream.
func (s *Stream) runSession(ctx, hard context.Context) error {
	db, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(hard, db.PgConn())
	sv, err := s.checkServer(ctx, db)
	if err != nil {
		return err
	}
	if sv.types, err = s.checkTables(ctx, db); err != nil {
		return err
	}
	if err := s.checkHistory(ctx, db); err != nil {
		return err
	}
	if s.cfg.Ensure {
		if _, err := s.ensure(ctx, db, sv); err != nil {
			return err
		}
	}
	if err := s.checkPublication(ctx, db, sv.version); err != nil {
		return err
	}
	if err := s.awaitSlot(ctx, db, sv); err != nil {
		return err
	}
	repl, w, err := s.connectReplication(ctx)
	if err != nil {
		return err
	}
	ses, err := s.acquire(ctx, db, repl, w, sv)
	if err != nil {
		closeConn(hard, repl)
		return err
	}
	err = ses.run(ctx, hard)
	switch {
	case err != nil && ctx.Err() != nil:
		return &incompleteStop{err}
	case err == nil && ctx.Err() == nil:
		return errAgain // the backlog is published
	}
	return err
}

// incompleteStop is errIncomplete with its cause.
type incompleteStop struct{ cause error }

func (e *incompleteStop) Error() string   { return e.cause.Error() }
func (e *incompleteStop) Unwrap() []error { return []error{errIncomplete, e.cause} }

// awaitSlot returns when the slot is there, sound and free. Until it is free this is a standby relay: it looks,
// and does not try START_REPLICATION, for each refused try writes into the server's log.
func (s *Stream) awaitSlot(ctx context.Context, db *pgx.Conn, sv server) error {
	s.mu.Lock()
	last := s.lastPID
	s.mu.Unlock()
	for began := time.Now(); ; {
		row, found, err := s.loadSlot(ctx, db)
		if err != nil {
			return err
		}
		if !found {
			return s.slotMissing()
		}
		if err := s.checkSlot(row, sv.database); err != nil {
			return err
		}
		if !row.active {
			return nil
		}
		interval := s.cfg.StandbyInterval
		if uint32(row.activePID) == last && time.Since(began) < 5*time.Second {
			interval = min(interval, 50*time.Millisecond) // our own last walsender, on its way out
		} else {
			s.report(state.Status{State: state.Standby, Reason: fmt.Sprintf("slot %q is held by another relay (walsender pid %d)", s.cfg.Slot, row.activePID)})
		}
		if !sleep(ctx, interval) {
			return context.Cause(ctx)
		}
	}
}

// acquire takes the slot. The order matters: the slot's position is read before relay_state, so that a slot found
// ahead proves that somebody else moved it; and the owner token is set once the slot is held, so that from then on
// no earlier owner can write.
func (s *Stream) acquire(ctx context.Context, db *pgx.Conn, repl *pgconn.PgConn, w *wire, sv server) (*session, error) {
	qctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	id, err := pglogrepl.IdentifySystem(qctx, repl)
	if err != nil {
		return nil, s.serverError("identify system", err)
	}
	rec, err := s.record(qctx, db, id)
	if err != nil {
		return nil, err
	}
	// Before the slot is taken, so that it is free for whoever recovers it; once more when nobody else can note anything.
	if err := s.checkRecordPublished(qctx, db, sv.version, rec); err != nil {
		return nil, err
	}
	binary := "binary 'true'" // cheaper, and it gives bytea as it is
	if sv.types.text {
		binary = "binary 'false'"
	}
	err = pglogrepl.StartReplication(qctx, repl, s.cfg.Slot, pglogrepl.LSN(rec.Confirmed), pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication,
		PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + quoteOption(pgx.Identifier{s.cfg.Publication}.Sanitize()),
			"messages 'true'", // counted in every position, so they must be there whether or not any is published
			binary,
		},
	})
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "55006":
		return nil, errAgain // somebody was faster
	case errors.As(err, &pg) && pg.Code == "55000":
		return nil, s.slotLost(pg.Message)
	case errors.As(err, &pg) && pg.Code == "42704":
		return nil, s.slotMissing()
	case err != nil:
		return nil, s.serverError("start replication", err)
	}
	row, found, err := s.loadSlot(qctx, db)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, s.slotMissing()
	}
	owner := rand.Text()
	before := rec.Timeline
	rec, err = s.store.Acquire(qctx, db, s.cfg.Slot, owner, id.Timeline)
	if err != nil {
		return nil, s.serverError("acquire relay_state", err)
	}
	if row.confirmed > rec.Confirmed {
		return nil, s.slotRecreated(row.confirmed, rec.Confirmed)
	}
	was, err := readPublished(rec)
	if err != nil {
		return nil, err
	}
	pub, err := s.followPublication(qctx, db, sv.version, owner, was)
	if err != nil {
		return nil, err
	}
	if before != id.Timeline && s.listener.TimelineChanged != nil {
		s.listener.TimelineChanged(before, id.Timeline)
	}
	hijacked, err := repl.Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over connection: %w", err)
	}
	return s.newSession(db, hijacked, w, rec, owner, sv, pub), nil
}

func quoteOption(s string) string {
	out := make([]byte, 0, len(s)+2)
	out = append(out, '\'')
	for i := range len(s) {
		if s[i] == '\'' {
			out = append(out, '\'')
		}
		out = append(out, s[i])
	}
	return string(append(out, '\''))
}

// SourceOf names the source of a relay's events: it stands in every position and in the producer's identity.
func SourceOf(systemIdentifier, database, slot string) string {
	return outbox.SourceName(sha256.Sum256([]byte(systemIdentifier + "/" + database + "/" + slot)))
}

func (s *Stream) newSession(db *pgx.Conn, hc *pgconn.HijackedConn, w *wire, rec Record, owner string, sv server, pub published) *session {
	interval := s.cfg.StatusInterval
	if sv.senderTimeout > 0 {
		interval = min(interval, sv.senderTimeout/3)
	}
	wm := newWatermark(rec.Confirmed)
	source := SourceOf(rec.SystemIdentifier, sv.database, s.cfg.Slot)
	r := &reader{
		tables: s.cfg.mappings(), oids: pub.oids, emitted: &messageDecoder{mappings: s.cfg.Messages, source: source}, types: sv.types, conn: hc.Conn, frontend: hc.Frontend, wire: w, watermark: wm, interval: interval,
		incarnation: rec.Incarnation, relations: map[uint32]*layout{},
		cur: newChunk(), free: make(chan *chunk, chunkCount), full: make(chan *chunk, 1), wake: make(chan struct{}, 1), looks: make(chan struct{}, 1),
		nextStatus: time.Now(),
	}
	for range chunkCount - 1 {
		r.free <- newChunk()
	}
	r.flush.Store(uint64(rec.Confirmed))
	r.lastHeard.Store(time.Now().UnixNano())
	ses := &session{s: s, db: db, record: rec, owner: owner, pid: hc.PID, watermark: wm, reader: r,
		source: source, version: sv.version, published: pub}
	if rec.Phase == PhaseBacklog {
		ses.backlog = newBacklog(ses)
		ses.watermark = ses.backlog.marks
	}
	return ses
}

// run streams until ctx ends (then it drains), hard ends, or something fails; a backlog ends by itself too. All
// goroutines have ended and the connection is closed when it returns.
func (ses *session) run(ctx, hard context.Context) error {
	s, r := ses.s, ses.reader
	defer r.close()
	to := Session{Source: ses.source, Incarnation: ses.record.Incarnation, ResumeLSN: ses.record.Confirmed, Owner: ses.owner, Stopping: ctx.Done(), Done: ses.watermark.Done}
	if ses.backlog != nil {
		to.ResumeLSN = 0
	}
	sink, err := s.open(to)
	if err != nil {
		return fmt.Errorf("open sink: %w", err)
	}
	ses.sink = sink
	ses.opened()
	defer ses.closed()

	sctx, cancel := context.WithCancelCause(hard)
	defer cancel(nil)
	firstAck, acked := context.WithCancel(sctx)
	defer acked()
	ses.watermark.first = acked
	streaming, sinkFinished := context.WithCancel(sctx)
	defer sinkFinished()
	ctl := &control{s: s, db: ses.db, owner: ses.owner, watermark: ses.watermark, reader: r, pid: ses.pid, version: ses.version, published: ses.published, lastTables: time.Now(),
		confirmed: ses.record.Confirmed, streaming: streaming, firstAck: firstAck, lastConfirm: ses.noteConfirm}

	type end struct {
		who string
		err error
	}
	ends := make(chan end, 4)
	start := func(who string, f func() error) { go func() { ends <- end{who, f()} }() }
	r.wire.Attach(r)
	start("sink", func() error { return sink.Run(sctx) })
	if b := ses.backlog; b != nil {
		start("reader", r.hold)
		start("dispatch", func() error { return b.feed(sctx, ctx, sink) })
		start("control", func() error { return b.settle(sctx, ctl) })
	} else {
		start("reader", r.run)
		start("dispatch", func() error { return r.dispatch(sctx, sink) })
		start("control", func() error { return ctl.run(sctx) })
		s.report(state.Status{State: state.Streaming})
	}

	stopping, hardStop := ctx.Done(), hard.Done()
	var failure error
	draining := false
	fail := func(err error) {
		if failure == nil {
			failure = err
			cancel(err)
			r.stop(abortReader)
		}
	}
	for left := 4; left > 0; {
		select {
		case <-stopping:
			stopping, draining = nil, true
			s.report(state.Status{State: state.Draining, Reason: "told to stop"})
			r.stop(drainReader)
		case <-hardStop:
			hardStop = nil
			fail(ses.leftBehind(context.Cause(hard)))
		case e := <-ends:
			left--
			switch {
			case failure != nil:
			case e.err != nil:
				fail(ses.explain(e.who, e.err))
			case e.who == "dispatch" && (draining || ses.backlog != nil):
				draining = true
				sink.Drain()
			case e.who == "sink" && draining:
				sinkFinished()
			case e.who == "control" && draining:
				r.stop(finishReader)
			case e.who == "reader" && draining:
			default:
				fail(fmt.Errorf("%s ended by itself", e.who))
			}
		}
	}
	return failure
}

// leftBehind says what a hard stop cuts off. None of it is lost.
func (ses *session) leftBehind(cause error) error {
	if events, _ := ses.watermark.Pending(); events > 0 {
		return fmt.Errorf("stopped with %d events unacknowledged, which the next start publishes: %w", events, cause)
	}
	return fmt.Errorf("stopped before everything was confirmed; the next start goes on from the last confirmed position: %w", cause)
}

// explain adds the state to an error of one of the session's parts.
func (ses *session) explain(who string, err error) error {
	if state.Of(err) != nil || who == "sink" || who == "dispatch" {
		return err
	}
	var unknown *unknownTypeError
	if errors.As(err, &unknown) {
		ses.s.needText()
		return errAgain
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "42704": // the walsender looks publications up while it streams
			return &state.Error{State: state.PublicationMissing,
				Reason: fmt.Sprintf("the stream broke off: %s (%s)", pg.Message, pg.Code),
				Hint:   "the publication is missing at the point of the WAL where the stream stands, and one made later does not help there. Make the publication, drop the slot, and run relay recover: it makes a new slot and publishes what is in between"}
		case "55000":
			return ses.s.slotLost(pg.Message)
		}
	}
	if errors.Is(err, ErrNotOwner) {
		return err
	}
	return ses.s.serverError("stream", err)
}

func (ses *session) opened() {
	ses.s.mu.Lock()
	defer ses.s.mu.Unlock()
	ses.s.session, ses.s.lastPID = ses, ses.pid
	ses.s.stats.Connected = true
	ses.s.stats.Sessions++
	ses.s.stats.ConfirmedLSN = ses.record.Confirmed
}

func (ses *session) closed() {
	ses.s.mu.Lock()
	defer ses.s.mu.Unlock()
	ses.addStats(&ses.s.stats)
	ses.s.stats.PendingEvents, ses.s.stats.OldestPending, ses.s.stats.BacklogLeft = 0, time.Time{}, 0
	ses.s.stats.Connected, ses.s.session = false, nil
}

func (ses *session) noteConfirm(lsn outbox.LSN) {
	ses.s.mu.Lock()
	defer ses.s.mu.Unlock()
	ses.s.stats.ConfirmedLSN, ses.s.stats.LastConfirm = lsn, time.Now()
}

// addStats adds the session's counts.
func (ses *session) addStats(st *Stats) {
	c := &ses.reader.counts
	st.ReceivedTransactions += c.transactions.Load()
	st.ReceivedEvents += c.events.Load()
	st.ReceivedBytes += c.bytes.Load()
	st.SkippedMessages += c.skipped.Load()
	st.ReceivedLSN = max(st.ReceivedLSN, outbox.LSN(c.received.Load()))
	st.PendingEvents, st.OldestPending = ses.watermark.Pending()
	if b := ses.backlog; b != nil {
		st.BacklogLeft = b.left.Load()
		st.BacklogVanished += b.vanished.Load()
	}
}
