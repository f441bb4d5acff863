package sqltest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

const notify = "INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ($1, $2, 't') RETURNING id"

// above returns the ids that a list shows above one.
func (b *bundle) above(recipient string, after any) []int64 {
	b.Helper()
	return list[int64](b, "SELECT id FROM ledger.list_notifications('', $1, $2, 1000)", recipient, after)
}

// Two transactions draw their ids in one order and commit in the other.
func TestNotifications_order(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ('k:0', 'user:1', 't')")
	first, second := b.begin(b.connect()), b.begin(b.connect())
	low := oneOn[int64](b, first, notify, "k:1", "user:1")
	high := oneOn[int64](b, second, notify, "k:2", "user:1")
	if low >= high {
		t.Fatalf("ids %d and %d", low, high)
	}
	if err := second.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.above("user:1", 0); !slices.Equal(got, []int64{low - 1}) {
		t.Errorf("while the lower one is open the list shows %v, want %d alone: who follows by id would miss %d", got, low-1, low)
	}
	if got := b.above("user:1", nil); !slices.Equal(got, []int64{low - 1}) {
		t.Errorf("the newest are %v, want %d alone", got, low-1)
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.above("user:1", low-1); !slices.Equal(got, []int64{low, high}) {
		t.Errorf("after both the list shows %v, want %d and %d", got, low, high)
	}
}

// A transaction that is rolled back holds up nothing after its end, nor one to a savepoint; one that writes no
// notification holds up nothing at all.
func TestNotifications_orderOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.begin(b.connect())
	oneOn[string](b, other, "SELECT pg_current_xact_id()::text")
	tx := b.begin(b.connect())
	sub, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	oneOn[int64](b, sub, notify, "k:1", "user:1")
	id := one[int64](b, notify, "k:2", "user:1")
	if got := b.above("user:1", 0); len(got) != 0 {
		t.Errorf("an open savepoint's row is below: the list shows %v", got)
	}
	if err := sub.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.above("user:1", 0); !slices.Equal(got, []int64{id}) {
		t.Errorf("after the savepoint's end the list shows %v, want %d", got, id)
	}
	// And the transaction's next row is ordered again.
	low := oneOn[int64](b, tx, notify, "k:3", "user:1")
	one[int64](b, notify, "k:4", "user:1")
	if got := b.above("user:1", id); len(got) != 0 {
		t.Errorf("row %d is open: the list shows %v", low, got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.above("user:1", id); len(got) != 1 {
		t.Errorf("after the end the list shows %v", got)
	}
}

// A lock's name is 32 bits long, the sequence 63.
func TestNotifications_orderLargeIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, start := range []int64{1<<31 - 2, 1<<32 - 2, 1<<40 - 1} {
		b.exec(fmt.Sprintf("ALTER TABLE ledger.notifications ALTER id RESTART WITH %d", start))
		first := b.begin(b.connect())
		var low int64
		for i := range 3 {
			low = one[int64](b, notify, fmt.Sprint("a:", start, i), "user:1")
		}
		oneOn[int64](b, first, notify, fmt.Sprint("b:", start), "user:1")
		one[int64](b, notify, fmt.Sprint("c:", start), "user:1")
		if got := one[int64](b, "SELECT ledger.notifications_settled()"); got != low {
			t.Errorf("from %d: settled up to %d, want %d", start, got, low)
		}
		if err := first.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := one[int64](b, "SELECT ledger.notifications_settled()"); got != low+2 {
			t.Errorf("from %d: settled up to %d, want %d", start, got, low+2)
		}
	}
}

// Readers follow the list by id while writers commit in any order, roll back, and write several rows each.
func TestNotifications_follow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const writers, each = 8, 150
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	for w := range writers {
		conn := b.connect()
		writing.Go(func() {
			for i := range each {
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				for j := range 1 + rand.N(3) {
					if _, err := tx.Exec(t.Context(), "INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ($1, 'user:1', 't')", fmt.Sprint(w, ":", i, ":", j)); err != nil {
						t.Error(err)
					}
					if _, err := tx.Exec(t.Context(), "SELECT pg_sleep($1)", rand.Float64()*0.004); err != nil {
						t.Error(err)
					}
				}
				if rand.N(5) == 0 {
					err = tx.Rollback(t.Context())
				} else {
					err = tx.Commit(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := make([][]int64, 3)
	for r := range seen {
		conn := b.connect()
		reading.Go(func() {
			last, ended := int64(0), false
			for {
				rows, err := conn.Query(t.Context(), "SELECT id FROM ledger.list_notifications('', 'user:1', $1, 20)", last)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
				if err != nil {
					t.Error(err)
					return
				}
				if len(got) > 0 {
					last = got[len(got)-1]
					seen[r] = append(seen[r], got...)
				} else if ended {
					return
				}
				select {
				case <-stop:
					ended = true
				default:
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	want := list[int64](b, "SELECT id FROM ledger.notifications ORDER BY id")
	if len(want) < writers*each/2 {
		t.Fatalf("%d rows were written", len(want))
	}
	for r, got := range seen {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reader %d (-table +seen):\n%s", r, diff)
		}
	}
}

func TestReadNotifications(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mine := one[int64](b, notify, "k:1", "user:1")
	theirs := one[int64](b, notify, "k:1", "user:2")
	for _, want := range []int{1, 0} {
		if got := one[int](b, "SELECT ledger.read_notifications('', 'user:1', $1)", []int64{mine, theirs, 999}); got != want {
			t.Errorf("%d marked, want %d", got, want)
		}
	}
	if got := list[int64](b, "SELECT id FROM ledger.notifications WHERE read_at IS NOT NULL"); !slices.Equal(got, []int64{mine}) {
		t.Errorf("read are %v, want %d alone", got, mine)
	}
}

func TestAnnounceNotification(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := one[int64](b, notify, "k:1", "user:1")
	listener := b.connect()
	if _, err := listener.Exec(t.Context(), "LISTEN ledger_notifications"); err != nil {
		t.Fatal(err)
	}
	if none := one[*int64](b, "SELECT ledger.announce_notification('', 'k:2', 'user:1')"); none != nil {
		t.Errorf("what is not there was announced as %d", *none)
	}
	if got := one[int64](b, "SELECT ledger.announce_notification('', 'k:1', 'user:1')"); got != id {
		t.Errorf("announced %d, want %d", got, id)
	}
	n, err := listener.Conn().WaitForNotification(t.Context())
	if err != nil || n.Payload != fmt.Sprint(id) {
		t.Errorf("heard %+v, %v; want %d and nothing else", n, err, id)
	}
}

func TestInbox_arguments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, sql := range []string{
		"SELECT ledger.list_notifications(NULL, 'user:1', 0, 10)", "SELECT ledger.list_notifications('', NULL, 0, 10)",
		"SELECT ledger.list_notifications('', 'user:1', 0, 0)", "SELECT ledger.list_notifications('', 'user:1', 0, 1001)",
		"SELECT ledger.read_notifications('', NULL, '{}')", "SELECT ledger.read_notifications('', 'user:1', array_fill(1::bigint, ARRAY[1001]))",
	} {
		if _, err := b.conn.Exec(t.Context(), sql); sqlState(err) != "22023" {
			t.Errorf("%s: %v, want 22023", sql, err)
		}
	}
	tx, err := b.conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT ledger.list_notifications('', 'user:1', 0, 10)"); sqlState(err) != "25000" {
		t.Errorf("in REPEATABLE READ: %v, want 25000", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec("INSERT INTO ledger.role_tenants VALUES (session_user, 'a')")
	for _, sql := range []string{
		"SELECT ledger.list_notifications('', 'user:1', 0, 10)", "SELECT ledger.read_notifications('', 'user:1', '{}')",
		"SELECT ledger.announce_notification('', 'k:1', 'user:1')",
	} {
		if _, err := b.conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want 42501", sql, err)
		}
	}
	if got := list[int64](b, "SELECT id FROM ledger.list_notifications('a', 'user:1', 0, 10)"); len(got) != 0 {
		t.Errorf("own tenant: %v", got)
	}
}
