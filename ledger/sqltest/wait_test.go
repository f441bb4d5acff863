package sqltest_test

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
)

// untilWaiting returns when the connection's session waits for a lock.
func (b *bundle) untilWaiting(conn *pgxpool.Conn) {
	b.Helper()
	pid := conn.Conn().PgConn().PID()
	testenv.Eventually(b, 10*time.Second, func() (bool, string) {
		return oneOn[bool](b, b.pool, "SELECT coalesce((SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1), false)", pid), "the session does not wait"
	})
}
