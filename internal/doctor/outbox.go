package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/cdc"
)

const sectionOutbox = "Outbox"

func (p *patient) outbox() []step {
	return []step{
		{sectionOutbox, "rows", []string{"tables", "grants"}, p.withDB(p.census, "rows")},
		{sectionOutbox, "record size", []string{"tables", "grants"}, p.withDB(p.largest, "record size")},
	}
}

// sampleRows is how many rows of a table are looked at; a larger one is sampled.
const sampleRows = 200_000

// extent is how large a table is, its partitions included.
type extent struct {
	rows  int64 // estimated
	dead  int64
	bytes int64 // with indexes and large values
	whole bool  // it is small enough to be read
}

func (p *patient) extent(ctx context.Context, db cdc.DB, t cdc.Table) (e extent, err error) {
	var analyzed, heap int64
	err = db.QueryRow(ctx, `
		with parts as (
			select to_regclass($1)::oid as oid union select relid::oid from pg_partition_tree(to_regclass($1)::regclass)
		)
		select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint, coalesce(sum(pg_relation_size(c.oid)), 0)::bigint,
			coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint,
			coalesce(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint
		from parts p join pg_class c on c.oid = p.oid`, t.String()).Scan(&analyzed, &heap, &e.bytes, &e.dead, &e.rows)
	if err != nil {
		return e, err
	}
	if e.rows+e.dead == 0 { // nothing is counted since the statistics were reset
		e.rows = analyzed
	}
	if e.rows+e.dead == 0 {
		const guess = 200 // bytes a row, where nobody has counted yet
		e.rows = heap / guess
	}
	e.whole = e.rows <= sampleRows
	return e, nil
}

// from is the table in a FROM clause: all of it, or a sample from everywhere in it.
func (e extent) from(t cdc.Table) string {
	if e.whole {
		return t.String()
	}
	return fmt.Sprintf("%s tablesample system (%g)", t, max(100*float64(sampleRows)/float64(e.rows), 0.01))
}

func (e extent) sampled() string {
	if e.whole {
		return ""
	}
	return " (of a sample)"
}

func (p *patient) census(ctx context.Context, s *sheet, db cdc.DB) error {
	for _, t := range p.tables {
		e, err := p.extent(ctx, db, t.Table)
		if err != nil {
			return err
		}
		name := "rows of " + label(t.Table)
		about := "about "
		if e.whole {
			about = ""
			if err := db.QueryRow(ctx, "select count(*) from "+t.Table.String()).Scan(&e.rows); err != nil {
				return err
			}
		}
		what := fmt.Sprintf("%s%d, %s", about, e.rows, size(e.bytes))
		if at, ok := t.Fields[cdc.FieldOccurredAt]; ok {
			var oldest *time.Time
			err := db.QueryRow(ctx, fmt.Sprintf(`select min(at) filter (where isfinite(at)) from (select %s::timestamptz as at from %s) r`, quote(at), e.from(t.Table))).Scan(&oldest)
			if err != nil {
				return err
			}
			if oldest != nil {
				what += fmt.Sprintf(", the oldest%s %s old", e.sampled(), age(time.Since(*oldest)))
			}
		}
		if e.dead > 100_000 && e.dead > e.rows {
			s.warn(name, do("deletes outrun autovacuum, or an old transaction holds it back", fmt.Sprintf("VACUUM %s;", t.Table)), "%s; %d dead rows", what, e.dead)
			continue
		}
		s.ok(name, "%s, %d dead rows", what, e.dead)
	}
	return nil
}

// largest is the largest row of a table, as far as its record is made of the payload and the headers.
type largest struct {
	table   cdc.Table
	bytes   int64
	sampled string
}

// batchOverhead is what a record has beside payload and headers, at the least: batch header, key, our own headers.
const batchOverhead = 61 + 200

func (p *patient) largest(ctx context.Context, s *sheet, db cdc.DB) error {
	for i, t := range p.tables {
		e, err := p.extent(ctx, db, t.Table)
		if err != nil {
			return err
		}
		var terms []string
		for _, f := range []cdc.Field{cdc.FieldPayload, cdc.FieldPayloadBytes, cdc.FieldHeaders} {
			if c, ok := t.Fields[f]; ok {
				terms = append(terms, "coalesce("+length(quote(c), t.Types[c])+", 0)::bigint")
			}
		}
		if len(terms) == 0 {
			continue
		}
		l := largest{table: t.Table, sampled: e.sampled()}
		if err := db.QueryRow(ctx, fmt.Sprintf(`select coalesce(max(%s), 0) from %s`, strings.Join(terms, " + "), e.from(t.Table))).Scan(&l.bytes); err != nil {
			return err
		}
		p.rows = append(p.rows, l)
		name, most := "record size of "+label(t.Table), int64(p.cfg.Sink.MaxRecordBytes)
		if own := p.cfg.Sink.Routes[p.x.Tables()[i].Route].MaxRecordBytes; own != 0 {
			most = int64(own)
		}
		if l.bytes+batchOverhead > most {
			s.warn(name, do("refuse such payloads where they are written, for instance by a CHECK constraint, and store them elsewhere"),
				"the largest row%s has %s of payload and headers, more than the relay's limit of %s: an event like it halts its partition", l.sampled, size(l.bytes), size(most))
			continue
		}
		s.ok(name, "the largest row%s has %s of payload and headers; the relay's limit is %s", l.sampled, size(l.bytes), size(most))
	}
	return nil
}

// length is the length of a value as it is published. For text, json and bytea the server knows it without unpacking
// the value; a jsonb is estimated by what it takes in the table.
func length(column, typ string) string {
	if slices.Contains([]string{"json", "text", "bytea"}, typ) || strings.HasPrefix(typ, "character") {
		if typ == "json" {
			column += "::text"
		}
		return "octet_length(" + column + ")"
	}
	return "pg_column_size(" + column + ")"
}
