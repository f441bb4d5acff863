package cdc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
)

// TestVouched_Xmin holds the comparison of 32-bit transaction IDs against the whole ones, near the ends of the counter's
// rounds and for frozen rows of earlier rounds.
func TestVouched_Xmin(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), testenv.NewDatabase(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	const round = uint64(1) << 32
	for _, c := range []struct {
		below, next, row uint64 // safe_xid, the snapshot's xmax, the row's transaction
	}{
		{1000, 1500, 999}, {1000, 1500, 1000}, {1000, 1500, 1499}, {1000, 1500, 3},
		{round + 10, round + 500, round - 5}, {round + 10, round + 500, round + 9}, {round + 10, round + 500, round + 10}, {round + 10, round + 500, round + 499},
		{round - 10, round + 500, round - 11}, {round - 10, round + 500, round - 10}, {round - 10, round + 500, round + 3}, {round - 10, round + 500, round + 499},
		{3*round + 7, 3*round + 90, 3}, {3*round + 7, 3*round + 90, round / 2}, {3*round + 7, 3*round + 90, round*2 + 100}, // frozen long ago
		{5*round - 1, 5*round + round/2, 5*round + round/2 - 1}, {5*round - 1, 5*round + round/2, 5*round - 2},
	} {
		for _, xact := range []bool{false, true} {
			table := &rowTable{xact: xact}
			var p params
			// The real snapshot's xmax is some hundreds; the statement is given the one of the case.
			sql := fmt.Sprintf(`select %s, %s from (select '%d'::xid as xmin, '%d'::xid8 as xact_id) t`,
				table.vouched(c.below, &p), table.xid(c.below, &p), uint32(c.row), c.row)
			sql = strings.ReplaceAll(sql, "pg_current_snapshot()", fmt.Sprintf("'%[1]d:%[1]d:'::pg_snapshot", c.next))
			var got bool
			var xid int64
			if err := conn.QueryRow(t.Context(), sql, p...).Scan(&got, &xid); err != nil {
				t.Fatal(err)
			}
			if want := c.row < c.below; got != want {
				t.Errorf("below %d, next %d, row %d, xact_id %v: vouched for is %v, want %v", c.below, c.next, c.row, xact, got, want)
			}
			if c.row < c.below && c.row+round > c.below && xid != int64(c.row) {
				t.Errorf("below %d, row %d, xact_id %v: transaction %d", c.below, c.row, xact, xid)
			}
		}
	}
}
