package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// Config says what to check.
type Config struct {
	// Stream is the relay's, made and not running.
	Stream *cdc.Stream
	// Slot, Publication, Failover and Backlog are those that Stream was made with.
	Slot, Publication string
	Failover          bool
	Backlog           cdc.Backlog
	// Sink is the sink's configuration: routes and limits.
	Sink sink.Config
	// Kafka is how to reach it; nil: the sink is another one, and Kafka is not looked at.
	Kafka *sink.KafkaConfig
	// Webhook is where events are posted to; nil: the sink is another one.
	Webhook *sink.WebhookConfig
	// Process is where doctor runs.
	Process Process
}

// Process is what concerns the process that a relay is, or will be, on this machine.
type Process struct {
	// Needed is the memory that a relay with this configuration takes, in bytes.
	Needed int64
	// GoLimit is GOMEMLIMIT in bytes, Limit the container's; 0: none.
	GoLimit, Limit int64
	// Admin is the address of the admin listener; empty: it is off.
	Admin string
	// Ask returns the state of the relay that answers at Admin; answers is false where none does.
	Ask func(context.Context) (s state.Status, answers bool)
	// Bind tries to listen at Admin and lets go at once.
	Bind func(context.Context) error
}

// patient is what steps share.
type patient struct {
	cfg    Config
	x      *cdc.Examination // nil: not connected
	server cdc.Server
	tables []cdc.MappedTable
	topics map[string]bool // those that events go to
	places map[string]sink.Topic
	stand  cdc.Standing
	system string // identifier
	rows   []largest
	alive  []sink.Node
}

// Examine runs every check. It returns when all are done or ctx has ended.
func Examine(ctx context.Context, cfg Config) Report {
	p := &patient{cfg: cfg, topics: map[string]bool{}, places: map[string]sink.Topic{}}
	defer func() {
		if p.x != nil {
			p.x.Close(context.WithoutCancel(ctx))
		}
	}()
	steps := append(p.database(), p.rights()...)
	steps = append(steps, p.schema()...)
	steps = append(steps, p.slot()...)
	steps = append(steps, p.outbox()...)
	if cfg.Kafka != nil {
		steps = append(steps, p.kafka()...)
	}
	if cfg.Webhook != nil {
		steps = append(steps, p.webhook()...)
	}
	steps = append(steps, p.process()...)
	return run(ctx, steps)
}

// db returns the connection. One that an earlier step lost, because its time was over, is made anew.
func (p *patient) db(ctx context.Context) (cdc.DB, error) {
	if err := p.connect(ctx); err != nil {
		return nil, err
	}
	return p.x.DB(), nil
}

func (p *patient) connect(ctx context.Context) error {
	if p.x != nil {
		if conn, ok := p.x.DB().(*pgx.Conn); !ok || !conn.IsClosed() {
			return nil
		}
	}
	had := p.x != nil
	x, err := p.cfg.Stream.Examine(ctx)
	if err != nil {
		return err
	}
	p.x = x
	if had {
		_, err = x.Server(ctx)
	}
	return err
}

// withDB makes a step of a func that needs the database.
func (p *patient) withDB(f func(context.Context, *sheet, cdc.DB) error, name string) func(context.Context, *sheet) {
	return func(ctx context.Context, s *sheet) {
		db, err := p.db(ctx)
		if err == nil {
			err = f(ctx, s, db)
		}
		if err != nil {
			s.broken(name, plain(ctx, err))
		}
	}
}

// plain words an error of a query for people.
func plain(ctx context.Context, err error) error {
	if state.Of(err) == nil && ctx.Err() != nil {
		return fmt.Errorf("no answer within %v", stepTimeout)
	}
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// label is a table for people; SQL has it quoted.
func label(t cdc.Table) string { return t.Schema + "." + t.Name }

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// size writes a number of bytes for people.
func size(n int64) string {
	v, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}

func age(d time.Duration) string { return max(0, d).Round(time.Second).String() }
