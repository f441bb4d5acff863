-- Events that no slot will bring: those older than a slot, and those in the gap behind a slot that was lost; and
-- the record of each recovery.

-- +goose Up
-- +goose StatementBegin

-- No index but the key: a list is filled once, in bulk, read in order and emptied from its low end.
CREATE TABLE IF NOT EXISTS outbox.backlog (
    slot         text   NOT NULL,
    ordinal      bigint NOT NULL,
    source_table text   NOT NULL,
    event_id     text   NOT NULL,

    CONSTRAINT backlog_pkey          PRIMARY KEY (slot, ordinal),
    -- Eight hexadecimal digits of relay_position.
    CONSTRAINT backlog_ordinal_range CHECK (ordinal BETWEEN 1 AND 4294967295)
);
COMMENT ON TABLE outbox.backlog IS
    'Events that go before the stream, because no slot brings them; one row each, deleted when the event is published. Only the relay writes here.';
COMMENT ON COLUMN outbox.backlog.slot IS
    'Replication slot whose relay publishes them.';
COMMENT ON COLUMN outbox.backlog.ordinal IS
    'Their order, from 1; also the ordinal of the record''s relay_position.';
COMMENT ON COLUMN outbox.backlog.source_table IS
    'Outbox table that holds the event''s row, quoted where SQL needs it.';
COMMENT ON COLUMN outbox.backlog.event_id IS
    'The row''s id, as text.';

CREATE TABLE IF NOT EXISTS outbox.recoveries (
    id                     bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    slot                   text        NOT NULL,
    recovered_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    database_role          text        NOT NULL DEFAULT current_user,
    actor                  text        NOT NULL,
    cause                  text        NOT NULL,
    scope                  text        NOT NULL,
    events                 bigint      NOT NULL,
    from_system_identifier text,
    from_incarnation       integer,
    from_lsn               pg_lsn,
    to_system_identifier   text        NOT NULL,
    to_incarnation         integer     NOT NULL,
    to_lsn                 pg_lsn      NOT NULL,

    CONSTRAINT recoveries_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE outbox.recoveries IS
    'Each relay recover: who made a slot anew, why, and what it publishes again. Rows are only added.';
COMMENT ON COLUMN outbox.recoveries.id IS
    'Counts the recoveries.';
COMMENT ON COLUMN outbox.recoveries.slot IS
    'Replication slot that was made anew.';
COMMENT ON COLUMN outbox.recoveries.recovered_at IS
    'When.';
COMMENT ON COLUMN outbox.recoveries.database_role IS
    'Database role that did it.';
COMMENT ON COLUMN outbox.recoveries.actor IS
    'Who ran the command, as the operating system knows them, and on which host.';
COMMENT ON COLUMN outbox.recoveries.cause IS
    'State of the relay that made it necessary, such as slot_lost.';
COMMENT ON COLUMN outbox.recoveries.scope IS
    'Which events were taken: "xact_id >= 4711", "occurred_at >= 2026-11-30T18:00:00Z" or "all".';
COMMENT ON COLUMN outbox.recoveries.events IS
    'How many events were put into outbox.backlog, those that were left there from before included.';
COMMENT ON COLUMN outbox.recoveries.from_system_identifier IS
    'Server whose positions the slot''s were before; NULL: nothing was known.';
COMMENT ON COLUMN outbox.recoveries.from_incarnation IS
    'Incarnation before; NULL: nothing was known.';
COMMENT ON COLUMN outbox.recoveries.from_lsn IS
    'Last confirmed end LSN before; NULL: nothing was known.';
COMMENT ON COLUMN outbox.recoveries.to_system_identifier IS
    'Server of the new slot.';
COMMENT ON COLUMN outbox.recoveries.to_incarnation IS
    'Incarnation from now on.';
COMMENT ON COLUMN outbox.recoveries.to_lsn IS
    'Where the new slot begins: what committed later comes by the stream.';

COMMENT ON COLUMN outbox.relay_state.safe_xid IS
    'Every transaction below it is confirmed, was aborted, or has what is left of it in outbox.backlog: its other rows may be pruned and need no recovery. NULL: not known.';

-- +goose StatementEnd
