package cdc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// rowTable is an outbox table as a source of rows that no slot brings. A row that is selected becomes an event by
// the same layout as one that comes by the stream. Its columns are read in their text form, which every type has.
type rowTable struct {
	table   Table
	layout  *layout
	columns []string // what layout maps, quoted
	id      string   // column of the event ID, quoted
	idType  string   // its type
	at      string   // column of the event's time, quoted; empty: none
	kind    string   // column of the aggregate type, quoted; empty: none
	xact    bool     // there is a column xact_id, which names the row's transaction for ever
	prefix  string   // of the event ID

	fields map[Field]string // columns by what they hold, quoted
}

// order is how rows of the table are listed: by time where the table knows it.
func (t *rowTable) order() string {
	if t.at == "" {
		return "null::timestamptz"
	}
	return "t." + t.at + "::timestamptz"
}

// fetch selects the rows with these IDs, in this order, and calls take for each, with the row in the form that a
// stream would send it, nil where there is no such row any more. The tuple is borrowed. take returns false to have
// no more.
func (t *rowTable) fetch(ctx context.Context, conn *pgconn.PgConn, ids []string, take func(i int, tuple []byte) (bool, error)) error {
	param, err := json.Marshal(ids)
	if err != nil {
		return fmt.Errorf("encode IDs of %s: %w", t.table, err)
	}
	columns := make([]string, len(t.columns))
	for i, c := range t.columns {
		columns[i] = "t." + c
	}
	sql := fmt.Sprintf(`
		select wanted.n - 1, t.%[1]s is not null, %[2]s
		from json_array_elements_text($1::json) with ordinality as wanted (id, n)
		left join %[3]s t on t.%[1]s = wanted.id::%[4]s order by wanted.n`,
		t.id, strings.Join(columns, ", "), t.table, t.idType)
	result := conn.ExecParams(ctx, sql, [][]byte{param}, nil, nil, nil)
	last, more := -1, true
	var tuple []byte
	for more && result.NextRow() {
		values := result.Values()
		var n int
		if n, err = strconv.Atoi(string(values[0])); err != nil {
			break
		}
		if n == last {
			continue // an ID that is not unique: the list has one entry a row
		}
		last = n
		if string(values[1]) == "t" {
			tuple = appendTuple(tuple[:0], values[2:])
			more, err = take(n, tuple)
		} else {
			more, err = take(n, nil)
		}
		if err != nil {
			break
		}
	}
	_, closeErr := result.Close() // reads what is left of the result
	if err != nil {
		return err
	}
	return closeErr
}

// appendTuple writes text values in the form of pgoutput's tuple data.
func appendTuple(dst []byte, values [][]byte) []byte {
	for _, v := range values {
		if v == nil {
			dst = append(dst, 'n')
			continue
		}
		dst = append(dst, 't')
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
		dst = append(dst, v...)
	}
	return dst
}
