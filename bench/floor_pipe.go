package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/twmb/franz-go/pkg/kgo"
)

// pipe is the loop that one writes first: receive, parse, produce, confirm what is acknowledged. What fails ends it.
type pipe struct {
	conn      *pgconn.PgConn
	client    *kgo.Client
	topic     string
	relations map[uint32]*pipeRelation
	status    time.Time // when the next one is due

	mu        sync.Mutex     // guards the fields below
	open      []*transaction // in commit order, the last one not yet committed
	confirmed pglogrepl.LSN
	err       error // the producer's
}

// pipeRelation knows where the columns of a table are.
type pipeRelation struct{ id, key, eventType, payload int }

// transaction waits for its records' acknowledgements.
type transaction struct {
	left int
	end  pglogrepl.LSN // zero: not committed yet
}

const statusEvery = time.Second

func floorPipe(ctx context.Context, cfg floorConfig) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.brokers...), kgo.ProducerLinger(cfg.linger), kgo.MaxBufferedRecords(100_000),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	conn, err := startStream(ctx, cfg.dsn, false, nil)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Conn().Close() })
	defer stop()
	p := &pipe{conn: conn, client: client, topic: cfg.topic, relations: map[uint32]*pipeRelation{}}
	for {
		message, err := conn.ReceiveMessage(context.Background())
		if err != nil {
			return stopped(ctx, fmt.Errorf("receive: %w", err))
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok {
			return fmt.Errorf("receive: unexpected message %T", message)
		}
		if err := p.handle(ctx, data.Data); err != nil {
			return stopped(ctx, err)
		}
	}
}

func (p *pipe) handle(ctx context.Context, data []byte) error {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("parse keepalive: %w", err)
		}
		if keepalive.ReplyRequested {
			p.status = time.Time{}
		}
	case pglogrepl.XLogDataByteID:
		xlog, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("parse WAL data: %w", err)
		}
		message, err := pglogrepl.Parse(xlog.WALData)
		if err != nil {
			return fmt.Errorf("parse message: %w", err)
		}
		if err := p.message(ctx, message); err != nil {
			return err
		}
	}
	return p.report(ctx)
}

func (p *pipe) message(ctx context.Context, message pglogrepl.Message) error {
	switch m := message.(type) {
	case *pglogrepl.RelationMessage:
		r := &pipeRelation{}
		for i, c := range m.Columns {
			switch c.Name {
			case "id":
				r.id = i
			case "aggregate_id":
				r.key = i
			case "event_type":
				r.eventType = i
			case "payload":
				r.payload = i
			}
		}
		p.relations[m.RelationID] = r
	case *pglogrepl.BeginMessage:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open = append(p.open, &transaction{})
	case *pglogrepl.InsertMessage:
		p.produce(ctx, p.relations[m.RelationID], m.Tuple.Columns)
	case *pglogrepl.CommitMessage:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open[len(p.open)-1].end = m.TransactionEndLSN
		p.advance()
		return p.err
	}
	return nil
}

func (p *pipe) produce(ctx context.Context, r *pipeRelation, columns []*pglogrepl.TupleDataColumn) {
	p.mu.Lock()
	tx := p.open[len(p.open)-1]
	tx.left++
	p.mu.Unlock()
	p.client.Produce(ctx, &kgo.Record{
		Topic: p.topic, Key: columns[r.key].Data, Value: columns[r.payload].Data,
		Headers: []kgo.RecordHeader{{Key: "id", Value: columns[r.id].Data}, {Key: "event_type", Value: columns[r.eventType].Data}},
	}, func(_ *kgo.Record, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.err = errors.Join(p.err, fmt.Errorf("produce: %w", err))
			return
		}
		if tx.left--; tx.left == 0 {
			p.advance()
		}
	})
}

// advance confirms the transactions at the front that are committed and acknowledged. mu is held.
func (p *pipe) advance() {
	n := 0
	for n < len(p.open) && p.open[n].end != 0 && p.open[n].left == 0 {
		p.confirmed = p.open[n].end
		n++
	}
	p.open = p.open[n:]
}

// report tells the server what is confirmed, once a second or when it asks. Before anything is confirmed there is
// nothing to say: zero would be read as everything.
func (p *pipe) report(ctx context.Context) error {
	now := time.Now()
	if now.Before(p.status) {
		return nil
	}
	p.mu.Lock()
	lsn, err := p.confirmed, p.err
	p.mu.Unlock()
	if err != nil || lsn == 0 {
		return err
	}
	p.status = now.Add(statusEvery)
	if err := pglogrepl.SendStandbyStatusUpdate(ctx, p.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: lsn}); err != nil {
		return fmt.Errorf("report progress: %w", err)
	}
	return nil
}
