-- The outbox: the table that applications write to, the functions that write to it, and the relay's own progress.
--
-- relay migrate up applies this file; so does
--     psql --single-transaction -v ON_ERROR_STOP=1 -f 00001_events_and_relay_state.sql
-- Applying it again, by either way, changes nothing. It needs CREATE on the database, or a schema outbox that the
-- migration role owns. It grants nothing to anybody: roles/relay.sql does.

-- +goose Up
-- +goose StatementBegin

DO $$
BEGIN
    -- The names below resolve while this file runs: nobody's search_path, and nothing in public, may have a say.
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false);
    -- Not CREATE SCHEMA IF NOT EXISTS: that asks for CREATE on the database even where the schema is there already.
    IF to_regnamespace('outbox') IS NULL THEN
        CREATE SCHEMA outbox;
    END IF;
END
$$;
COMMENT ON SCHEMA outbox IS 'Transactional outbox: events written with the business rows, published to Kafka by relay.';

-- 48 bits of milliseconds, version 7, 12 bits of the fraction of a millisecond, variant, 62 random bits (RFC 9562,
-- section 6.2, method 3). 4096/1000 is written 512/125 so that bigint lasts until the year 2540. A body in BEGIN
-- ATOMIC is bound to what it calls when it is created, so the caller's search_path has no say in it, and the planner
-- may still inline it.
CREATE OR REPLACE FUNCTION outbox.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
BEGIN ATOMIC
    SELECT (overlay(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 512 / 125), 15, '0')
                    PLACING '7' FROM 13 FOR 0)
            || right(gen_random_uuid()::text, 17))::uuid;
END;
COMMENT ON FUNCTION outbox.uuid_v7() IS
    'A version 7 UUID of now. Within one server they rise from microsecond to microsecond while its clock does.';

-- STRICT: rows without headers do not pay for it. plpgsql keeps its plans for the session, where a SQL body would be
-- planned anew by each statement that inserts: 0.01 ms and 0.16 ms when measured.
CREATE OR REPLACE FUNCTION outbox.headers_valid(headers jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    h record;
    total integer := 0;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RETURN false;
    END IF;
    FOR h IN SELECT e.name, jsonb_typeof(e.value) AS type, e.value #>> '{}' AS value
             FROM jsonb_each(headers) AS e (name, value)
    LOOP
        total := total + octet_length(h.name) + octet_length(h.value);
        IF h.type <> 'string' OR total > 16384
           OR octet_length(h.name) NOT BETWEEN 1 AND 256 OR h.name ~ '[\r\n]'
           OR h.name IN ('id', 'event_key', 'event_type', 'aggregate_type', 'occurred_at', 'tenant',
                         'relay_position', 'relay_replay') THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END
$$;
COMMENT ON FUNCTION outbox.headers_valid(jsonb) IS
    'Whether headers is an object of strings, each name 1 to 256 bytes without CR or LF and not one of the relay''s own, names and values 16384 bytes at most in all.';

CREATE TABLE IF NOT EXISTS outbox.events (
    id             uuid        NOT NULL DEFAULT outbox.uuid_v7(),
    tenant         text        NOT NULL DEFAULT '',
    event_key      text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        json,
    payload_bytes  bytea,
    headers        jsonb,
    topic          text,
    partition_key  text,
    occurred_at    timestamptz NOT NULL DEFAULT now(),
    xact_id        xid8        NOT NULL DEFAULT pg_current_xact_id(),

    CONSTRAINT events_pkey PRIMARY KEY (id),
    CONSTRAINT events_tenant_length         CHECK (char_length(tenant) <= 64),
    CONSTRAINT events_event_key_length      CHECK (char_length(event_key) BETWEEN 1 AND 255),
    CONSTRAINT events_aggregate_type_length CHECK (char_length(aggregate_type) BETWEEN 1 AND 64),
    CONSTRAINT events_aggregate_id_length   CHECK (char_length(aggregate_id) BETWEEN 1 AND 255),
    CONSTRAINT events_event_type_length     CHECK (char_length(event_type) BETWEEN 1 AND 64),
    CONSTRAINT events_payload_single        CHECK (payload IS NULL OR payload_bytes IS NULL),
    CONSTRAINT events_headers_valid         CHECK (outbox.headers_valid(headers)),
    -- Kafka's own rule for names, less the internal topics: what could never be produced is refused here, where
    -- the writer learns of it, and not by a relay that has to stop over it.
    CONSTRAINT events_topic_valid           CHECK (topic ~ '^[a-zA-Z0-9._-]{1,249}$' AND topic NOT IN ('.', '..')
                                                   AND left(topic, 2) <> '__'),
    CONSTRAINT events_partition_key_length  CHECK (char_length(partition_key) BETWEEN 1 AND 255),
    -- The years that RFC 3339 can write; infinity is outside.
    CONSTRAINT events_occurred_at_range     CHECK (occurred_at >= '0001-01-01 00:00:00+00'::timestamptz
                                                   AND occurred_at < '10000-01-01 00:00:00+00'::timestamptz)
);

-- For tracing one business event. Not unique: a scheduler that runs twice
-- writes two rows, and the ledger makes them one delivery.
-- There is no index on occurred_at or xact_id, for each insert would pay for it: ids of version 7 lead with the
-- time, so pruning walks the primary key from its low end and tests age and xact_id on the rows it meets.
CREATE INDEX IF NOT EXISTS events_event_key_idx ON outbox.events (event_key);

COMMENT ON TABLE outbox.events IS
    'One row an event, written in the transaction that makes it true. Rows are never updated; they stay for replay and repair until pruned.';
COMMENT ON COLUMN outbox.events.id IS
    'Event ID, a version 7 UUID: the event''s identity for ever, header id on the record.';
COMMENT ON COLUMN outbox.events.tenant IS
    'Whose event it is, in an application with many tenants; empty otherwise. At most 64 characters.';
COMMENT ON COLUMN outbox.events.event_key IS
    'Stable name of the business event, such as scheduled-post-published:42: the same on every retry and every run. 1 to 255 characters.';
COMMENT ON COLUMN outbox.events.aggregate_type IS
    'What kind of thing changed; routes to the topic. 1 to 64 characters.';
COMMENT ON COLUMN outbox.events.aggregate_id IS
    'Which one changed; the default partition key. 1 to 255 characters.';
COMMENT ON COLUMN outbox.events.event_type IS
    'What happened, such as OrderPlaced. 1 to 64 characters.';
COMMENT ON COLUMN outbox.events.payload IS
    'Value of the record, published byte for byte as written. Type json because jsonb would rewrite it. NULL in both payload columns is a tombstone.';
COMMENT ON COLUMN outbox.events.payload_bytes IS
    'Value of the record where it is not JSON. At most one of payload and payload_bytes is set.';
COMMENT ON COLUMN outbox.events.headers IS
    'Further headers of the record: a JSON object, string to string; outbox.headers_valid has the rules. NULL is none.';
COMMENT ON COLUMN outbox.events.topic IS
    'Explicit topic, if the relay''s configuration allows it; NULL: the route decides. Kafka''s rule for names, not beginning with __.';
COMMENT ON COLUMN outbox.events.partition_key IS
    'Record key: events with an equal one keep their commit order. NULL: aggregate_id. 1 to 255 characters.';
COMMENT ON COLUMN outbox.events.occurred_at IS
    'When it happened, as the application says; by default the transaction''s start. Years 1 to 9999.';
COMMENT ON COLUMN outbox.events.xact_id IS
    'Transaction that wrote the row; decides what may be pruned and what a recovery publishes again. Leave it to its default.';

-- The parameters' names are API: callers use named notation. They equal the columns' names, so each is written
-- publish.name. No RETURNING: it would need SELECT on the table.
CREATE OR REPLACE FUNCTION outbox.publish(
    event_key      text,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        json        DEFAULT NULL,
    payload_bytes  bytea       DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    topic          text        DEFAULT NULL,
    partition_key  text        DEFAULT NULL,
    tenant         text        DEFAULT NULL,
    occurred_at    timestamptz DEFAULT NULL,
    id             uuid        DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_id CONSTANT uuid := coalesce(publish.id, outbox.uuid_v7());
BEGIN
    INSERT INTO outbox.events (id, tenant, event_key, aggregate_type, aggregate_id, event_type, payload,
                               payload_bytes, headers, topic, partition_key, occurred_at)
    VALUES (new_id, coalesce(publish.tenant, ''), publish.event_key, publish.aggregate_type, publish.aggregate_id,
            publish.event_type, publish.payload, publish.payload_bytes, publish.headers, publish.topic,
            publish.partition_key, coalesce(publish.occurred_at, now()));
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION outbox.publish(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) IS
    'Writes one event in the caller''s transaction and returns its ID. Call it in named notation; a parameter that is NULL or left out takes the column''s default.';

CREATE TABLE IF NOT EXISTS outbox.relay_state (
    slot              text        NOT NULL,
    system_identifier text        NOT NULL,
    timeline          integer     NOT NULL,
    incarnation       integer     NOT NULL,
    phase             text        NOT NULL,
    confirmed_lsn     pg_lsn,
    safe_xid          xid8,
    owner             text,
    updated_at        timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT relay_state_pkey PRIMARY KEY (slot),
    CONSTRAINT relay_state_phase_known CHECK (phase IN ('creating', 'backlog', 'streaming')),
    CONSTRAINT relay_state_confirmed   CHECK (phase = 'creating' OR confirmed_lsn IS NOT NULL)
) WITH (fillfactor = 50); -- one row a slot, updated up to once a second: room for updates that touch no index

COMMENT ON TABLE outbox.relay_state IS
    'How far each slot''s relay has come. Only the relay writes here; editing it by hand can lose events.';
COMMENT ON COLUMN outbox.relay_state.slot IS
    'Replication slot.';
COMMENT ON COLUMN outbox.relay_state.system_identifier IS
    'The server whose positions these are, as IDENTIFY_SYSTEM names it.';
COMMENT ON COLUMN outbox.relay_state.timeline IS
    'That server''s timeline when the relay last looked; a promotion raises it.';
COMMENT ON COLUMN outbox.relay_state.incarnation IS
    'How often the slot was made anew; positions of different incarnations are not compared.';
COMMENT ON COLUMN outbox.relay_state.phase IS
    'creating: the slot is being made; backlog: rows older than the slot are being published; streaming: events as they commit.';
COMMENT ON COLUMN outbox.relay_state.confirmed_lsn IS
    'End LSN up to which every event is acknowledged by the broker; never falls. NULL only while creating.';
COMMENT ON COLUMN outbox.relay_state.safe_xid IS
    'Every transaction below it is confirmed or was aborted: its rows may be pruned and need no recovery. NULL: not known.';
COMMENT ON COLUMN outbox.relay_state.owner IS
    'Random token of the process that holds the slot; every write of the relay names it. NULL: none yet.';
COMMENT ON COLUMN outbox.relay_state.updated_at IS
    'When the row last changed.';

-- PostgreSQL lets everybody execute a new function.
REVOKE ALL ON FUNCTION outbox.uuid_v7() FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox.headers_valid(jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION
    outbox.publish(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) FROM PUBLIC;

-- +goose StatementEnd
