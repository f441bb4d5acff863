package doctor_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
	"github.com/outboxrelay/relay/sink"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// quiet are settings of a server about which there is nothing to say.
func quiet() map[string]string {
	return map[string]string{"max_slot_wal_keep_size": "1GB", "max_prepared_transactions": "20"}
}

// rig is a database with all that a relay needs, a role with the printed rights and no more, and a broker.
type rig struct {
	t     *testing.T
	db    *testenv.Database
	super *pgx.Conn
	role  string
	slot  string
	topic string
	cfg   cdc.Config
	ensur *cdc.Stream // with a superuser's rights
	doc   doctor.Config
	kafka *kafkaserver.Fake
}

// newRig makes one, with an event in the table. change, if any, changes the configuration of the stream before anything is made.
func newRig(t *testing.T, server *pgserver.Server, change ...func(*cdc.Config)) *rig {
	t.Helper()
	r := &rig{t: t, db: testenv.NewDatabaseOn(t, server.DSN("postgres", "")), topic: "outbox.event.Order"}
	r.slot, r.role = r.db.Name, r.db.Name+"_r"
	r.super = r.connect()
	if _, err := migrations.Up(t.Context(), r.super.Config(), migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	r.exec("CREATE ROLE " + r.role + " LOGIN REPLICATION")
	t.Cleanup(func() { r.forget(server) })
	grants, err := migrations.Outbox().Grants()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range grants {
		r.exec(g.String(r.db.Name, r.role))
	}

	r.cfg = cdc.DefaultConfig()
	r.cfg.Slot, r.cfg.Publication = r.slot, "relay"
	for _, f := range change {
		f(&r.cfg)
	}
	super := r.cfg
	super.Connect = func() (*pgx.ConnConfig, error) { return pgx.ParseConfig(r.db.URL) }
	r.ensur = r.stream(super)
	if _, err := r.ensur.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`SELECT outbox.publish('key', 'Order', '42', 'Placed', '{}')`)

	if r.kafka, err = kafkaserver.StartFake(kafkaserver.FakeConfig{Brokers: 3}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kafka.Close)
	r.createTopic(r.topic, nil)
	k := sink.DefaultKafkaConfig()
	k.Brokers, k.RequestTimeout = r.kafka.Brokers(), 2*time.Second
	r.doc = doctor.Config{Slot: r.slot, Publication: r.cfg.Publication, Sink: sink.DefaultConfig(), Kafka: &k, Process: doctor.Process{
		Needed: 44 << 20, Ask: func(context.Context) (state.Status, bool) { return state.Status{}, false },
		Bind: func(context.Context) error { return nil }, Admin: "127.0.0.1:7070",
	}}
	r.doc.Sink.Routes = []sink.Route{{Topic: r.doc.Sink.Route}}
	return r
}

func (r *rig) stream(cfg cdc.Config) *cdc.Stream {
	r.t.Helper()
	s, err := cdc.NewStream(cfg, relaystate.Store{}, nil, cdc.Listener{})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) connect() *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.db.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(r.t.Context())) })
	return conn
}

// forget drops the role; its rights are in a database that goes first, or are dropped here.
func (r *rig) forget(server *pgserver.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.db.URL)
	if err != nil {
		r.t.Logf("role %s is left behind: %v", r.role, err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP OWNED BY "+r.role+" CASCADE; DROP ROLE "+r.role); err != nil {
		r.t.Errorf("drop role: %v", err)
	}
}

// exec runs statements as a superuser, with {role}, {slot} and {db} filled in.
func (r *rig) exec(statements ...string) {
	r.t.Helper()
	for _, sql := range statements {
		sql = strings.NewReplacer("{role}", r.role, "{slot}", r.slot, "{db}", r.db.Name).Replace(sql)
		if _, err := r.super.Exec(r.t.Context(), sql); err != nil {
			r.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// examine runs doctor as the relay's role.
func (r *rig) examine() doctor.Report {
	r.t.Helper()
	cfg := r.cfg
	cfg.Connect = func() (*pgx.ConnConfig, error) {
		c, err := pgx.ParseConfig(r.db.URL)
		if err == nil {
			c.User, c.Password = r.role, ""
		}
		return c, err
	}
	r.doc.Stream = r.stream(cfg)
	return doctor.Examine(r.t.Context(), r.doc)
}

// worst is the worst status that the checks of a name have, with the check; skip where there is none.
func worst(rep doctor.Report, section, name string) doctor.Check {
	out := doctor.Check{Status: doctor.Skip}
	rank := map[doctor.Status]int{doctor.Skip: 0, doctor.OK: 1, doctor.Warn: 2, doctor.Fail: 3}
	for _, c := range rep.Find(section, name) {
		if rank[c.Status] > rank[out.Status] {
			out = c
		}
	}
	return out
}

// wrong lists what is not in order.
func wrong(rep doctor.Report) (lines []string) {
	for _, c := range rep.Checks {
		if c.Status == doctor.Warn || c.Status == doctor.Fail {
			lines = append(lines, fmt.Sprintf("%s %s/%s: %s -> %s %q", c.Status, c.Section, c.Name, c.Seen, c.Fix, c.Run))
		}
	}
	return lines
}

// follow runs what a check says.
func (r *rig) follow(c doctor.Check) {
	r.t.Helper()
	if len(c.Run) == 0 {
		r.t.Fatalf("%s: there is nothing to run: %s", c.Name, c.Fix)
	}
	for _, sql := range c.Run {
		switch {
		case strings.HasPrefix(sql, "ALTER_REPLICATION_SLOT"):
			r.replication(sql)
		case sql == "relay migrate up":
			if _, err := migrations.Up(r.t.Context(), r.super.Config(), migrations.Outbox()); err != nil {
				r.t.Fatal(err)
			}
		case sql == "relay recover":
			r.recover()
		case strings.HasPrefix(sql, "kafka-configs.sh"):
			f := strings.Fields(sql)
			name, value, _ := strings.Cut(f[len(f)-1], "=")
			r.alterTopic(f[len(f)-3], name, value)
		case strings.HasPrefix(sql, "kafka-topics.sh"):
			f := strings.Fields(sql)
			r.createTopic(f[5], nil)
		case strings.HasSuffix(sql, ";"):
			r.exec(sql)
		default:
			r.t.Fatalf("%s: cannot run %q", c.Name, sql)
		}
	}
}

func (r *rig) recover() {
	r.t.Helper()
	plan, err := r.ensur.PlanRecovery(r.t.Context(), cdc.Scope{All: true})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.ensur.Recover(r.t.Context(), plan, "test"); err != nil {
		r.t.Fatal(err)
	}
}

// vouch says that a change of the publication left out no row.
func (r *rig) vouch() {
	r.t.Helper()
	plan, err := r.ensur.PlanRecovery(r.t.Context(), cdc.Scope{All: true})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.ensur.NothingMissing(r.t.Context(), plan, "test"); err != nil {
		r.t.Fatal(err)
	}
}

// walsender opens a superuser's replication connection.
func (r *rig) walsender() *pgconn.PgConn {
	r.t.Helper()
	cfg, err := pgconn.ParseConfig(r.db.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(r.t.Context())) })
	return conn
}

func (r *rig) replication(command string) {
	r.t.Helper()
	conn := r.walsender()
	if _, err := conn.Exec(r.t.Context(), command).ReadAll(); err != nil {
		r.t.Fatalf("%s: %v", command, err)
	}
	_ = conn.Close(r.t.Context())
}

func (r *rig) admin(do func(context.Context, *kadm.Client) error) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Brokers()...))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	if err := do(ctx, kadm.NewClient(client)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) createTopic(name string, configs map[string]string) {
	r.t.Helper()
	all := map[string]*string{"min.insync.replicas": new("2")}
	for k, v := range configs {
		all[k] = &v
	}
	r.admin(func(ctx context.Context, c *kadm.Client) error {
		_, err := c.CreateTopic(ctx, 2, 3, all, name)
		return err
	})
}

func (r *rig) alterTopic(topic, name, value string) {
	r.t.Helper()
	r.admin(func(ctx context.Context, c *kadm.Client) error {
		res, err := c.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
		for _, x := range res {
			if err == nil {
				err = x.Err
			}
		}
		return err
	})
}
