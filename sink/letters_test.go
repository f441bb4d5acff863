package sink_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// post is a database with dead letters.
type post struct {
	t    testing.TB
	cfg  *pgx.ConnConfig
	conn *pgx.Conn
	away atomic.Bool // new connections fail
}

func newPost(t testing.TB) *post {
	t.Helper()
	cfg, err := pgx.ParseConfig(testenv.NewDatabase(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), cfg, migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	p := &post{t: t, cfg: cfg}
	if p.conn, err = pgx.ConnectConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.conn.Close(context.Background()) })
	p.exec(`insert into outbox.relay_state (slot, system_identifier, timeline, incarnation, phase, confirmed_lsn, owner)
		values ('relay', '7', 1, 1, 'streaming', '0/1', 'me')`)
	return p
}

func (p *post) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.conn.Exec(context.WithoutCancel(p.t.Context()), sql, args...); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

// letters returns those of a session that resumes at an LSN.
func (p *post) letters(resume outbox.LSN) *relaystate.Letters {
	l := relaystate.NewLetters(relaystate.Session{
		Slot: "relay", Owner: "me", Source: source, Incarnation: 1, Resume: resume, Origins: []relaystate.Origin{{Source: "outbox.events"}},
	}, func() (*pgx.ConnConfig, error) {
		cfg := p.cfg.Copy()
		if p.away.Load() {
			cfg.Port = 1
		}
		return cfg, nil
	})
	p.t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// config returns settings with a policy for every event.
func (p *post) config(policy sink.Policy, topics ...string) sink.Config {
	cfg := testConfig()
	cfg.Routes = []sink.Route{{Topic: "t", Topics: topics, Poison: policy, Source: "outbox.events"}}
	cfg.DeadLetters, cfg.ResumeLSN = p.letters(1), 1
	return cfg
}

// rows describes the letters in order.
func (p *post) rows() []string {
	p.t.Helper()
	rows, err := p.conn.Query(p.t.Context(), `select event_id || ' ' || state || ' ' || class || case when holds then ' holds' else '' end from outbox.dead_letters order by id`)
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// parkCounter counts round trips.
type parkCounter struct {
	sink.DeadLetters
	parks atomic.Int32
}

func (c *parkCounter) Park(ctx context.Context, letters []*sink.Letter) error {
	c.parks.Add(1)
	return c.DeadLetters.Park(ctx, letters)
}

// open returns the letters that wait.
func (p *post) open(l *relaystate.Letters) []*sink.Letter {
	p.t.Helper()
	out, err := l.Open(p.t.Context(), sink.Selection{}, 100000, 1<<30)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

func hold(topic, key string) sink.Hold {
	return sink.Hold{Topic: topic, Partition: -1, Key: []byte(key)}
}

// replayed returns the values of records, each that was published on request with a mark.
func replayed(records []testenv.Record) []string {
	var out []string
	for _, r := range records {
		v := string(r.Value)
		if len(v) > 20 {
			v = fmt.Sprintf("%d bytes", len(v))
		}
		if kind, ok := r.Header("relay_replay"); ok {
			v += " " + kind
		}
		out = append(out, v)
	}
	return out
}
