package cdc

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

// TestGolden_Captured captures each case anew and compares it with what is stored, so that TestGolden speaks of what
// servers send. With -update it stores it.
func TestGolden_Captured(t *testing.T) {
	testenv.EachMajor(t, func(t *testing.T) {
		for _, c := range goldenCases() {
			t.Run(c.name, func(t *testing.T) {
				major, messages := capturePgoutput(t, &c)
				text := describeCapture(major, &c, messages)
				path := capturePath(major, c.name)
				if *update {
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				stored, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(strings.Split(string(stored), "\n"), strings.Split(text, "\n")); diff != "" {
					t.Errorf("the server sends something else than %s, go test ./cdc -run Golden -update stores it (-stored +sent):\n%s", path, diff)
				}
			})
		}
	})
}

// capturePgoutput runs a case on a server and returns what pgoutput makes of it, without what varies from run to run.
func capturePgoutput(t *testing.T, c *goldenCase) (major int, messages [][]byte) {
	t.Helper()
	ctx := t.Context()
	db := testenv.NewDatabase(t)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	if _, err := migrations.Up(ctx, cfg, migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	publish := c.publish
	if publish == "" {
		publish = "insert"
	}
	exec(`create schema app`)
	exec(`create publication golden with (publish = '` + publish + `', publish_via_partition_root = true)`)
	for _, sql := range c.setup {
		exec(sql)
	}
	for _, m := range c.tables {
		exec(`alter publication golden add table ` + m.Table.String())
	}
	if c.name == "origin" {
		exec(`select pg_replication_origin_create('golden')`)
		defer exec(`select pg_replication_origin_drop('golden')`)
	}
	exec(fmt.Sprintf(`select pg_create_logical_replication_slot('%s', 'pgoutput')`, db.Name))
	for _, sql := range c.run {
		exec(sql)
	}
	exec(`checkpoint`) // else a last message that belongs to no transaction may not be flushed yet
	rows, err := conn.Query(ctx, `select data from pg_logical_slot_get_binary_changes($1, null, null,
		'proto_version', '1', 'publication_names', 'golden', 'messages', 'true', 'binary', $2::bool::text)`, db.Name, !c.text)
	if err != nil {
		t.Fatal(err)
	}
	if messages, err = pgx.CollectRows(rows, pgx.RowTo[[]byte]); err != nil {
		t.Fatal(err)
	}
	exec(fmt.Sprintf(`select pg_drop_replication_slot('%s')`, db.Name))
	if err := conn.QueryRow(ctx, `select current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		t.Fatal(err)
	}
	var n normaliser
	for _, m := range messages {
		n.message(m)
	}
	return major, messages
}

// normaliser replaces in messages what varies from run to run, in place: LSNs, times, transaction IDs, and OIDs that
// are not built in.
type normaliser struct {
	tx   uint64
	xid  uint32
	oids map[uint32]uint32
}

func (n *normaliser) message(m []byte) {
	b := m[1:]
	lsn, clock := n.tx<<24, uint64(837_000_000_000_000)+n.tx
	switch m[0] {
	case 'B':
		n.tx++
		n.xid = binary.BigEndian.Uint32(b[16:])
		binary.BigEndian.PutUint64(b, n.tx<<24)
		binary.BigEndian.PutUint64(b[8:], uint64(837_000_000_000_000)+n.tx)
		binary.BigEndian.PutUint32(b[16:], uint32(700+n.tx))
	case 'C':
		binary.BigEndian.PutUint64(b[1:], lsn)
		binary.BigEndian.PutUint64(b[9:], lsn+0x30)
		binary.BigEndian.PutUint64(b[17:], clock)
	case 'M':
		binary.BigEndian.PutUint64(b[1:], lsn+0x10)
	case 'Y', 'U', 'D':
		n.oid(b)
	case 'T':
		for at := 5; at < len(b); at += 4 {
			n.oid(b[at:])
		}
	case 'R':
		n.oid(b)
		at := skipString(b, skipString(b, 4)) + 1
		columns := int(binary.BigEndian.Uint16(b[at:]))
		at += 2
		for range columns {
			at = skipString(b, at+1)
			n.oid(b[at:])
			at += 8
		}
	case 'I':
		n.oid(b)
		columns := int(binary.BigEndian.Uint16(b[5:]))
		at := 7
		for range columns {
			kind := b[at]
			at++
			if kind != 't' && kind != 'b' {
				continue
			}
			size := int(binary.BigEndian.Uint32(b[at:]))
			at += 4
			// The native table holds the transaction's ID; PostgreSQL 14 has no column lists to leave it out.
			if value := b[at : at+size]; kind == 'b' && size == 8 && binary.BigEndian.Uint64(value) == uint64(n.xid) {
				binary.BigEndian.PutUint64(value, 700+n.tx)
			} else if kind == 'b' && size >= 12 && binary.BigEndian.Uint32(value) == 1 && binary.BigEndian.Uint32(value[4:]) <= 1 {
				n.oid(value[8:]) // an array of one dimension says of what type its elements are
			}
			at += size
		}
	}
}

func skipString(b []byte, at int) int {
	for b[at] != 0 {
		at++
	}
	return at + 1
}

func (n *normaliser) oid(b []byte) {
	oid := binary.BigEndian.Uint32(b)
	if oid < firstUserOID {
		return
	}
	if n.oids == nil {
		n.oids = map[uint32]uint32{}
	}
	if _, ok := n.oids[oid]; !ok {
		n.oids[oid] = firstUserOID + uint32(len(n.oids))
	}
	binary.BigEndian.PutUint32(b, n.oids[oid])
}

// describeCapture is the file's text: for people the kind of each message and what can be read of it, then the bytes.
func describeCapture(major int, c *goldenCase, messages [][]byte) string {
	var b strings.Builder
	form := "binary"
	if c.text {
		form = "text"
	}
	fmt.Fprintf(&b, "# pgoutput of PostgreSQL %d, protocol version 1, %s forms.\n# LSNs, times, transaction IDs and OIDs from %d on are replaced.\n", major, form, firstUserOID)
	kinds := map[byte]string{'B': "begin", 'C': "commit", 'R': "relation", 'I': "insert", 'U': "update", 'D': "delete", 'T': "truncate", 'M': "message", 'O': "origin", 'Y': "type"}
	for _, m := range messages {
		body := m[1:]
		note := ""
		switch m[0] {
		case 'B':
			note = fmt.Sprintf("commit LSN %X, transaction %d", binary.BigEndian.Uint64(body), binary.BigEndian.Uint32(body[16:]))
		case 'C':
			note = fmt.Sprintf("end LSN %X", binary.BigEndian.Uint64(body[9:]))
		case 'I', 'U', 'D':
			note = fmt.Sprintf("of %d: %s", binary.BigEndian.Uint32(body), readable(body[4:]))
		default:
			note = readable(body)
		}
		fmt.Fprintf(&b, "# %s %s\n%s\n", kinds[m[0]], note, hex.EncodeToString(m))
	}
	return b.String()
}

// readable is what of the bytes is letters and digits, cut after a while.
func readable(b []byte) string {
	text := strings.Join(strings.FieldsFunc(string(b), func(r rune) bool { return r <= ' ' || r > '~' }), " ")
	if len(text) > 100 {
		text = text[:100] + "..."
	}
	return text
}
