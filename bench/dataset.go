package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// dataset is a database with rows that wait behind a slot.
type dataset struct {
	name       string // of the database
	rows, k    int
	keys       int
	payload    int
	partitions int
}

const (
	baseSlot    = "bench_base"
	runSlot     = "bench_run"
	publication = "relay"
)

func (d *dataset) String() string {
	return fmt.Sprintf("%d rows, %d a transaction, %d keys, %d-byte payloads, %d partitions", d.rows, d.k, d.keys, d.payload, d.partitions)
}

// prepare makes the database, and table, publication and base slot in it with relay migrate up; then the rows.
func (b *bench) prepare(ctx context.Context, d *dataset) error {
	b.say("preparing %s", d)
	if err := b.buildRelay(ctx); err != nil {
		return err
	}
	if err := b.exec(ctx, "postgres", "create database "+d.name); err != nil {
		return err
	}
	migrate := exec.CommandContext(ctx, b.relay, "migrate", "up", "--postgres-slot", baseSlot, "--postgres-publication", publication)
	migrate.Env = append(os.Environ(), "RELAY_POSTGRES_URL="+b.pg.DSN(d.name, ""))
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("prepare database %q: %w\n%s", d.name, err, out)
	}
	if err := b.exec(ctx, d.name, rowSQL); err != nil {
		return err
	}
	if d.rows == 0 {
		return nil
	}
	// Nothing of what is measured hangs on how the rows came to be there.
	return b.exec(ctx, d.name, "set synchronous_commit = off",
		fmt.Sprintf("call bench_fill(%d, %d, %d, %d)", d.rows, d.k, d.keys, d.payload), "checkpoint")
}

// remove drops the database with its slots: what it leaves in the WAL, the next data set's slot is made behind.
func (b *bench) remove(ctx context.Context, d *dataset) error {
	for _, slot := range []string{runSlot, baseSlot} {
		if err := b.dropSlot(ctx, slot); err != nil {
			return err
		}
	}
	return b.exec(ctx, "postgres", "drop database "+d.name+" with (force)", "checkpoint")
}

// copySlot makes the slot for the next run, at the base's position, with its row in relay_state.
func (b *bench) copySlot(ctx context.Context, d *dataset) error {
	if err := b.dropSlot(ctx, runSlot); err != nil {
		return err
	}
	return b.exec(ctx, d.name,
		fmt.Sprintf("select pg_copy_logical_replication_slot('%s', '%s')", baseSlot, runSlot),
		fmt.Sprintf("delete from outbox.relay_state where slot = '%s'", runSlot),
		fmt.Sprintf(`insert into outbox.relay_state
			select (jsonb_populate_record(s, '{"slot": "%s", "owner": null}')).* from outbox.relay_state s where slot = '%s'`, runSlot, baseSlot),
		"checkpoint")
}

// dropSlot drops a slot, if it is there, once nobody holds it.
func (b *bench) dropSlot(ctx context.Context, slot string) error {
	conn, err := b.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer closeQuietly(conn)
	return poll(ctx, 10*time.Millisecond, func() (bool, error) {
		var left int
		_, err := conn.Exec(ctx, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and not active", slot)
		if err == nil {
			err = conn.QueryRow(ctx, "select count(*) from pg_replication_slots where slot_name = $1", slot).Scan(&left)
		}
		if err != nil {
			return false, fmt.Errorf("drop slot %q: %w", slot, err)
		}
		return left == 0, nil
	})
}
