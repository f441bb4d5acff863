package deliver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger/deliver"
	"github.com/outboxrelay/relay/migrations"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		os.Exit(childMain())
	}
	os.Exit(testenv.Main(m))
}

// rig is a database with the example's tables and the ledger, a topic, and a channel that a test controls.
type rig struct {
	t       *testing.T
	url     string
	app     *pgxpool.Pool
	ledger  *pgxpool.Pool
	brokers []string
	topic   string
	rules   string // the file's text
	send    *sender
}

// settings are what makes a test quick: a retry comes at once.
const quick = `
channels:
  database: {backoff: 50ms..1s}
  test: {after: database, on_uncertain: resend, backoff: 50ms..1s}
`

// exampleRules is the example's file with the channel test in log's place.
func exampleRules(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/rules/scheduled-post-published.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, found := strings.Cut(string(text), "\nrules:\n")
	if !found {
		t.Fatal("the example has no rules")
	}
	return quick + "rules:\n" + strings.Replace(rules, "      log:\n", "      test:\n", 1)
}

func setup(t *testing.T) *rig {
	t.Helper()
	r := setupWithoutKafka(t)
	r.brokers = testenv.Kafka(t)
	r.topic = testenv.NewTopic(t, r.brokers, 3, nil)
	return r
}

func setupWithoutKafka(t *testing.T) *rig {
	t.Helper()
	db := testenv.NewDatabase(t)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), cfg, migrations.Ledger()); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, url: db.URL, app: newPool(t, db.URL), ledger: newPool(t, db.URL), rules: exampleRules(t), send: newSender()}
	schema, err := os.ReadFile("../../examples/rules/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	r.exec(string(schema))
	return r
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 20
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.app.Exec(context.WithoutCancel(r.t.Context()), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	var v T
	if err := r.app.QueryRow(context.WithoutCancel(r.t.Context()), sql, args...).Scan(&v); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// publishedAt is when the posts of the tests are published: long enough ago for the grace to be over.
var publishedAt = time.Now().Add(-10 * time.Minute).UTC().Truncate(time.Second)

// post makes a post of author 1 with followers 1 to n.
func (r *rig) post(id, followers int) {
	r.t.Helper()
	r.exec("INSERT INTO users (id) SELECT generate_series(1, $1::int) ON CONFLICT DO NOTHING", followers)
	r.exec("INSERT INTO followers SELECT 1, generate_series(1, $1::int) ON CONFLICT DO NOTHING", followers)
	r.exec("INSERT INTO posts (id, author_id, title, publish_at) VALUES ($1, 1, 'Post ' || $1::bigint, $2)", id, publishedAt)
}

// published is the record of the event that a post is out, as the relay writes it. row tells the outbox rows of one event apart.
func (r *rig) published(id, row int) *kgo.Record {
	payload, err := json.Marshal(map[string]any{"post_id": id, "publish_at": publishedAt})
	if err != nil {
		r.t.Fatal(err)
	}
	return &kgo.Record{
		Topic: r.topic, Key: []byte(fmt.Sprint(id)), Value: payload,
		Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(fmt.Sprintf("00000000-0000-7000-8000-%012d", id*1000+row))},
			{Key: "event_key", Value: []byte(fmt.Sprintf("scheduled-post-published:%d", id))},
			{Key: "event_type", Value: []byte("ScheduledPostPublished")},
			{Key: "aggregate_type", Value: []byte("Post")},
			{Key: "occurred_at", Value: []byte(publishedAt.Format(time.RFC3339Nano))},
		},
	}
}

func without(rec *kgo.Record, header string) *kgo.Record {
	out := *rec
	out.Headers = nil
	for _, h := range rec.Headers {
		if h.Key != header {
			out.Headers = append(out.Headers, h)
		}
	}
	return &out
}

func with(rec *kgo.Record, header, value string) *kgo.Record {
	out := without(rec, header)
	out.Headers = append(out.Headers, kgo.RecordHeader{Key: header, Value: []byte(value)})
	return out
}

func (r *rig) client() *kgo.Client {
	r.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.ProducerLinger(0))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) produce(records ...*kgo.Record) {
	r.t.Helper()
	c := r.client()
	defer c.Close()
	if err := c.ProduceSync(context.WithoutCancel(r.t.Context()), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// committed is the sum of the group's committed offsets.
func (r *rig) committed(group string) int64 {
	r.t.Helper()
	c := r.client()
	defer c.Close()
	offsets, err := kadm.NewClient(c).FetchOffsets(context.WithoutCancel(r.t.Context()), group)
	if err != nil {
		return 0
	}
	var sum int64
	offsets.Each(func(o kadm.OffsetResponse) {
		if o.At > 0 {
			sum += o.At
		}
	})
	return sum
}

func (r *rig) parse() *deliver.Rules {
	r.t.Helper()
	rules, err := deliver.ParseRules([]byte(r.rules), append(deliver.Kinds(deliver.NewLineWriter(os.Stderr)), r.send.kind(), deliver.Kind{
		Name: "asking", Fields: []deliver.Field{{Name: "line"}},
		New: func(deliver.Settings) (deliver.Channel, error) { return asking{r.send}, nil },
	}))
	if err != nil {
		r.t.Fatal(err)
	}
	return rules
}

func (r *rig) config() deliver.Config {
	cfg := deliver.DefaultConfig()
	cfg.Name, cfg.SameDatabase, cfg.Poll = "test", true, 50*time.Millisecond
	cfg.Kafka.Brokers, cfg.Kafka.Group, cfg.Kafka.SessionTimeout = r.brokers, "g-"+r.topic, 6*time.Second
	if r.topic != "" {
		cfg.Kafka.Topics = []string{r.topic}
	}
	return cfg
}

func (r *rig) worker(change func(*deliver.Config)) *deliver.Worker {
	r.t.Helper()
	cfg := r.config()
	if change != nil {
		change(&cfg)
	}
	w, err := deliver.New(cfg, r.parse(), r.app, r.ledger)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

// running is a worker at work.
type running struct {
	*deliver.Worker
	stop func() error // and wait; may be called again
}

func (r *rig) run(change func(*deliver.Config)) *running {
	r.t.Helper()
	w := r.worker(func(c *deliver.Config) {
		var mu sync.Mutex
		last := ""
		c.Notice = func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err.Error() != last {
				last = err.Error()
				fmt.Fprintln(os.Stderr, r.t.Name()+": notice:", err)
			}
		}
		if change != nil {
			change(c)
		}
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, context.WithoutCancel(ctx)) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(30 * time.Second):
			return errors.New("the worker does not end")
		}
	})
	r.t.Cleanup(func() {
		if err := stop(); err != nil {
			r.t.Errorf("worker: %v", err)
		}
	})
	return &running{w, stop}
}

func (r *rig) eventually(why string, check func() bool) {
	r.t.Helper()
	testenv.Eventually(r.t, 40*time.Second, func() (bool, string) { return check(), why + "\n" + r.state() })
}

// state shows the ledger.
func (r *rig) state() string {
	return one[string](r, `SELECT coalesce(string_agg(format('%s %s %s %s attempts=%s %s', event_key, recipient, channel, state, attempts, reason), E'\n' ORDER BY id), 'no rows')
FROM (SELECT * FROM ledger.notification_dispatches ORDER BY id LIMIT 20) d`)
}

// settled reports whether there are n rows and all are at their end.
func (r *rig) settled(n int) func() bool {
	return func() bool {
		return one[bool](r, "SELECT count(*) = $1 AND count(*) FILTER (WHERE state IN ('delivered', 'skipped', 'dead')) = $1 FROM ledger.notification_dispatches", n)
	}
}

func (r *rig) notifications() int { return one[int](r, "SELECT count(*) FROM ledger.notifications") }

// sender is a channel that a test controls and that counts, as a provider would.
type sender struct {
	// mu guards the fields below.
	mu     sync.Mutex
	calls  int
	order  []string // event key and recipient of what was sent
	keys   map[string]int
	before func(ctx context.Context, d deliver.Delivery) error
}

func newSender() *sender { return &sender{keys: map[string]int{}} }

func (s *sender) kind() deliver.Kind {
	return deliver.Kind{
		Name: "test", Fields: []deliver.Field{{Name: "line"}},
		New: func(deliver.Settings) (deliver.Channel, error) { return s, nil },
	}
}

func (s *sender) Send(ctx context.Context, d deliver.Delivery) (string, error) {
	s.mu.Lock()
	s.calls++
	before := s.before
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, d); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[d.ProviderKey]++
	s.order = append(s.order, d.Key.EventKey+" "+d.Key.Recipient)
	return "ref", nil
}

func (s *sender) set(before func(ctx context.Context, d deliver.Delivery) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// sent returns how many effects there were, and how often the most frequent.
func (s *sender) sent() (n, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		n += k
		most = max(most, k)
	}
	return n, most
}
