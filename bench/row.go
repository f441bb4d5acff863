package main

import (
	"fmt"
	"strconv"
)

// The n-th row of a data set, counted from 1, is a pure function of n: it is written by the functions in rowSQL and
// known to the verifier by those below, so that each record can be held against the row it came from.

// minPayload is the smallest payload that still has its row's number in it.
const minPayload = 10

// payloadHead is the least size from which on a payload is an object; a smaller one is a string of digits.
const payloadHead = 64

const rowSQL = `
create function bench_id(n bigint) returns uuid language sql immutable as $$
	select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid
$$;
create function bench_payload(n bigint, size int) returns json language sql immutable as $$
	select (case when size < 64 then '"' || lpad(n::text, size - 2, '0') || '"'
		else rpad('{"n": ' || n || ', "total":  ' || n % 1000 || '.70, "note": "', size - 2, 'as it was written, ') || '"}' end)::json
$$;
create procedure bench_fill(rows bigint, k int, keys int, size int) language plpgsql as $$
declare
	i bigint := 1;
begin
	while i <= rows loop
		insert into outbox.events (id, event_key, aggregate_type, aggregate_id, event_type, payload)
		select bench_id(n), 'order-placed:' || n, 'order', 'order-' || n % keys, 'OrderPlaced', bench_payload(n, size)
		from generate_series(i, least(i + k - 1, rows)) n;
		commit;
		i := i + k;
	end loop;
end $$`

const idPrefix = "00000000-0000-7000-8000-"

// rowOfID returns the number of the row with that ID; false: none has it.
func rowOfID(id string) (int, bool) {
	if len(id) != len(idPrefix)+12 || id[:len(idPrefix)] != idPrefix {
		return 0, false
	}
	n, err := strconv.ParseInt(id[len(idPrefix):], 16, 64)
	return int(n), err == nil && n > 0
}

func rowID(n int) string { return fmt.Sprintf("%s%012x", idPrefix, n) }

// appendKey appends the row's partition key.
func appendKey(dst []byte, n, keys int) []byte {
	return strconv.AppendInt(append(dst, "order-"...), int64(n%keys), 10)
}

// appendPayload appends the row's payload. Digits and spaces are such as a parser would change.
func appendPayload(dst []byte, n, size int) []byte {
	start := len(dst)
	if size < payloadHead {
		return fmt.Appendf(dst, `"%0*d"`, size-2, n)
	}
	dst = append(dst, `{"n": `...)
	dst = strconv.AppendInt(dst, int64(n), 10)
	dst = append(dst, `, "total":  `...)
	dst = strconv.AppendInt(dst, int64(n%1000), 10)
	dst = append(dst, `.70, "note": "`...)
	const fill = "as it was written, "
	for len(dst)-start < size-2 {
		dst = append(dst, fill[:min(len(fill), size-2-(len(dst)-start))]...)
	}
	return append(dst, `"}`...)
}
