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

-- The rules for headers, in one place. STRICT: rows without headers do not pay for them. plpgsql keeps its plans for
-- the session, where a SQL body would be planned anew by each statement that inserts: 0.01 ms and 0.16 ms when measured.
-- The name is cut and written as JSON, so the text is short and has one line; it never holds a value. COLLATE "C" folds
-- the case of ASCII alone, whatever the database's locale. strpos and not ~, which took 0.09 ms for a value of 16 KB.
CREATE OR REPLACE FUNCTION outbox.headers_fault(headers jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    h record;
    fault text;
    total integer := 0;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RETURN 'headers is not a JSON object';
    END IF;
    FOR h IN SELECT e.name, jsonb_typeof(e.value) AS type, e.value #>> '{}' AS value
             FROM jsonb_each(headers) AS e (name, value)
    LOOP
        fault := CASE
            WHEN h.type <> 'string' THEN 'is not a string'
            WHEN octet_length(h.name) = 0 THEN 'has an empty name'
            WHEN octet_length(h.name) > 256 THEN 'has a name of more than 256 bytes'
            WHEN strpos(h.name, E'\r') > 0 OR strpos(h.name, E'\n') > 0
                THEN 'has a carriage return or line feed in its name'
            WHEN strpos(h.value, E'\r') > 0 OR strpos(h.value, E'\n') > 0
                THEN 'has a carriage return or line feed in its value'
            WHEN lower(h.name COLLATE "C") IN ('id', 'event_key', 'event_type', 'aggregate_type', 'occurred_at',
                                               'tenant', 'relay_position', 'relay_replay')
                THEN 'has a name that the relay uses itself'
        END;
        IF fault IS NOT NULL THEN
            RETURN format('header %s %s', to_json(left(h.name, 64)), fault);
        END IF;
        total := total + octet_length(h.name) + octet_length(h.value);
        IF total > 16384 THEN
            RETURN 'headers has more than 16384 bytes of names and values';
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox.headers_fault(jsonb) IS
    'What is wrong with headers, without a value of theirs; NULL: nothing. They are an object of strings; a name has 1 to 256 bytes and is not one of the relay''s own in any case of its letters; no name or value has CR or LF; names and values have 16384 bytes at most in all.';

-- Without a search_path of its own, which costs time: there is no name in it to be resolved.
CREATE OR REPLACE FUNCTION outbox.headers_valid(headers jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    RETURN outbox.headers_fault(headers) IS NULL;
END
$$;
COMMENT ON FUNCTION outbox.headers_valid(jsonb) IS
    'Whether outbox.headers_fault finds nothing wrong with headers.';

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
    -- These three are headers of the record. A line break would make one header look like two where somebody prints
    -- them or passes them on as HTTP; the relay halts at such an event, so it is refused here, where the writer learns
    -- of it. The same goes for the aggregate type, which the default route puts into a topic's name.
    CONSTRAINT events_tenant_one_line       CHECK (tenant !~ '[\r\n]'),
    CONSTRAINT events_event_key_one_line    CHECK (event_key !~ '[\r\n]'),
    CONSTRAINT events_event_type_one_line   CHECK (event_type !~ '[\r\n]'),
    CONSTRAINT events_aggregate_type_characters CHECK (aggregate_type ~ '^[a-zA-Z0-9._-]*$'),
    CONSTRAINT events_payload_single        CHECK (payload IS NULL OR payload_bytes IS NULL),
    CONSTRAINT events_headers_valid         CHECK (outbox.headers_valid(headers)),
    -- Kafka's own rule for names, less the internal topics.
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
    'Whose event it is, in an application with many tenants; empty otherwise. At most 64 characters, no CR or LF.';
COMMENT ON COLUMN outbox.events.event_key IS
    'Stable name of the business event, such as scheduled-post-published:42: the same on every retry and every run. 1 to 255 characters, no CR or LF.';
COMMENT ON COLUMN outbox.events.aggregate_type IS
    'What kind of thing changed; routes to the topic. 1 to 64 letters, digits, ., _ and -, all of ASCII.';
COMMENT ON COLUMN outbox.events.aggregate_id IS
    'Which one changed; the default partition key. 1 to 255 characters.';
COMMENT ON COLUMN outbox.events.event_type IS
    'What happened, such as OrderPlaced. 1 to 64 characters, no CR or LF.';
COMMENT ON COLUMN outbox.events.payload IS
    'Value of the record, published byte for byte as written. Type json because jsonb would rewrite it. NULL in both payload columns is a tombstone.';
COMMENT ON COLUMN outbox.events.payload_bytes IS
    'Value of the record where it is not JSON. At most one of payload and payload_bytes is set.';
COMMENT ON COLUMN outbox.events.headers IS
    'Further headers of the record: a JSON object, string to string; outbox.headers_fault has the rules. NULL is none.';
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
    fault CONSTANT text := outbox.headers_fault(publish.headers);
BEGIN
    -- The table's constraint would refuse them too, and could not say which header and why.
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'events_headers_valid',
            SCHEMA = 'outbox', TABLE = 'events', MESSAGE = fault,
            HINT = 'Give every header a value of one line and a name of 1 to 256 bytes on one line that is none of id, '
                || 'event_key, event_type, aggregate_type, occurred_at, tenant, relay_position and relay_replay in any case '
                || 'of their letters, and all of them together at most 16384 bytes.';
    END IF;
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
REVOKE ALL ON FUNCTION outbox.headers_fault(jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox.headers_valid(jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION
    outbox.publish(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) FROM PUBLIC;

-- +goose StatementEnd
