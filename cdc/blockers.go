package cdc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
)

// maxBlockers bounds how many transactions a reason names.
const maxBlockers = 5

// blocker is a transaction that the making of a slot may wait for: one of a session, or a prepared one.
type blocker struct {
	PID         int32      // of the session; 0: prepared
	GID         string     // of the prepared transaction
	Application string     // the rest is empty where the role may not see it
	User        string     //
	Activity    string     // active, idle in transaction, ...
	Since       *time.Time // when it began, by the server's clock
	Now         time.Time  // that clock
}

func (b *blocker) String() string {
	var facts []string
	if b.Application != "" {
		facts = append(facts, b.Application)
	}
	if b.User != "" {
		facts = append(facts, "user "+b.User)
	}
	if b.Activity != "" {
		facts = append(facts, b.Activity)
	}
	if b.Since != nil {
		facts = append(facts, "open for "+coarse(b.Now.Sub(*b.Since)))
	}
	name := fmt.Sprintf("pid %d", b.PID)
	if b.PID == 0 {
		name = fmt.Sprintf("prepared transaction %q", b.GID)
	}
	if len(facts) == 0 {
		return name
	}
	return name + " (" + strings.Join(facts, ", ") + ")"
}

// coarse words an age such that it changes seldom: each change of a reason is told.
func coarse(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprint(max(0, d).Truncate(10 * time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Truncate(time.Minute).Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Truncate(time.Hour).Hours())
}

// blockers returns the transactions of the whole server that have written something and are not over, the oldest
// first: the snapshot of a new slot waits for them. Two connections of the relay's own are left out. more is how
// many there are beyond those returned.
func blockers(ctx context.Context, conn *pgx.Conn, creator uint32) (open []blocker, more int, err error) {
	rows, err := conn.Query(ctx, `
		select pid, gid, application, username, activity, since, clock_timestamp(), count(*) over ()
		from (
			select pid, '' as gid, coalesce(application_name, '') as application, coalesce(usename::text, '') as username,
			       coalesce(state, '') as activity, xact_start as since, age(backend_xid) as age
			from pg_stat_activity
			where backend_xid is not null and pid not in (pg_backend_pid(), $1)
			union all
			select 0, gid, '', owner::text, '', prepared, age(transaction) from pg_prepared_xacts
		) t
		order by age desc limit $2`, creator, maxBlockers)
	if err != nil {
		return nil, 0, err
	}
	var b blocker
	var total int
	_, err = pgx.ForEachRow(rows, []any{&b.PID, &b.GID, &b.Application, &b.User, &b.Activity, &b.Since, &b.Now, &total}, func() error {
		open = append(open, b)
		return nil
	})
	return open, total - len(open), err
}

// creatingStatus says what the making of a slot waits for.
func creatingStatus(slot string, open []blocker, more int) state.Status {
	names := make([]string, len(open))
	sessions, prepared := false, false
	for i := range open {
		names[i] = open[i].String()
		if open[i].PID == 0 {
			prepared = true
		} else {
			sessions = true
		}
	}
	st := state.Status{State: state.SlotCreating,
		Reason: fmt.Sprintf("slot %q waits for transactions that are older than it: %s", slot, strings.Join(names, "; "))}
	if more > 0 {
		st.Reason += fmt.Sprintf("; and %d more", more)
	}
	st.Hint = "wait until they end"
	if sessions {
		st.Hint += "; SELECT pg_terminate_backend(pid) ends a session and rolls its transaction back"
	}
	if prepared {
		st.Hint += "; COMMIT PREPARED 'gid' or ROLLBACK PREPARED 'gid', in its database, ends a prepared one"
	}
	return st
}
