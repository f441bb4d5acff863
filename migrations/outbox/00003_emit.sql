-- Events without a table: outbox.emit writes one into the write-ahead log alone, as a logical message of the caller's
-- transaction. There is no row to clean up, and none to publish again from: what no slot holds any more is gone.

-- +goose Up
-- +goose StatementBegin

-- The content is version 1: the byte 1, then the fields id, tenant, event_key, aggregate_type, aggregate_id, event_type,
-- payload, payload_bytes, headers, topic, partition_key and occurred_at in this order, each as a 32-bit length in network
-- order, -1 for NULL, and that many bytes: text in UTF-8, the id as the 16 bytes of a uuid, occurred_at as the 8 bytes
-- that timestamptz_send gives. Nothing follows.
CREATE OR REPLACE FUNCTION outbox.emit_field(value bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT int4send(coalesce(octet_length(value), -1)) || coalesce(value, ''::bytea);
END;
COMMENT ON FUNCTION outbox.emit_field(bytea) IS
    'One field of the content that outbox.emit writes: its length, -1 for NULL, and its bytes.';

-- SECURITY DEFINER, unlike outbox.publish: so it can be granted without pg_logical_emit_message, with which a role
-- could write any content under any prefix. The refusals are those of the constraints on outbox.events, by name.
CREATE OR REPLACE FUNCTION outbox.emit(
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
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_id CONSTANT uuid := coalesce(emit.id, outbox.uuid_v7());
    happened CONSTANT timestamptz := coalesce(emit.occurred_at, now());
    missing CONSTANT text := CASE
        WHEN emit.event_key IS NULL THEN 'event_key'
        WHEN emit.aggregate_type IS NULL THEN 'aggregate_type'
        WHEN emit.aggregate_id IS NULL THEN 'aggregate_id'
        WHEN emit.event_type IS NULL THEN 'event_type'
    END;
    violated CONSTANT text := CASE
        WHEN char_length(emit.tenant) > 64 THEN 'events_tenant_length'
        WHEN char_length(emit.event_key) NOT BETWEEN 1 AND 255 THEN 'events_event_key_length'
        WHEN char_length(emit.aggregate_type) NOT BETWEEN 1 AND 64 THEN 'events_aggregate_type_length'
        WHEN char_length(emit.aggregate_id) NOT BETWEEN 1 AND 255 THEN 'events_aggregate_id_length'
        WHEN char_length(emit.event_type) NOT BETWEEN 1 AND 64 THEN 'events_event_type_length'
        WHEN emit.tenant ~ '[\r\n]' THEN 'events_tenant_one_line'
        WHEN emit.event_key ~ '[\r\n]' THEN 'events_event_key_one_line'
        WHEN emit.event_type ~ '[\r\n]' THEN 'events_event_type_one_line'
        WHEN emit.aggregate_type !~ '^[a-zA-Z0-9._-]*$' THEN 'events_aggregate_type_characters'
        WHEN emit.payload IS NOT NULL AND emit.payload_bytes IS NOT NULL THEN 'events_payload_single'
        WHEN NOT outbox.headers_valid(emit.headers) THEN 'events_headers_valid'
        WHEN NOT (emit.topic ~ '^[a-zA-Z0-9._-]{1,249}$' AND emit.topic NOT IN ('.', '..') AND left(emit.topic, 2) <> '__')
            THEN 'events_topic_valid'
        WHEN char_length(emit.partition_key) NOT BETWEEN 1 AND 255 THEN 'events_partition_key_length'
        WHEN happened < '0001-01-01 00:00:00+00'::timestamptz OR happened >= '10000-01-01 00:00:00+00'::timestamptz
            THEN 'events_occurred_at_range'
    END;
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'null value in parameter "%" of outbox.emit', missing
            USING ERRCODE = 'not_null_violation', COLUMN = missing, SCHEMA = 'outbox';
    END IF;
    IF violated IS NOT NULL THEN
        RAISE EXCEPTION 'a parameter of outbox.emit violates check constraint "%"', violated
            USING ERRCODE = 'check_violation', CONSTRAINT = violated, SCHEMA = 'outbox', TABLE = 'events';
    END IF;
    PERFORM pg_logical_emit_message(true, 'outbox', '\x01'::bytea
        || outbox.emit_field(uuid_send(new_id))
        || outbox.emit_field(convert_to(coalesce(emit.tenant, ''), 'UTF8'))
        || outbox.emit_field(convert_to(emit.event_key, 'UTF8'))
        || outbox.emit_field(convert_to(emit.aggregate_type, 'UTF8'))
        || outbox.emit_field(convert_to(emit.aggregate_id, 'UTF8'))
        || outbox.emit_field(convert_to(emit.event_type, 'UTF8'))
        || outbox.emit_field(convert_to(emit.payload::text, 'UTF8'))
        || outbox.emit_field(emit.payload_bytes)
        || outbox.emit_field(convert_to(emit.headers::text, 'UTF8'))
        || outbox.emit_field(convert_to(emit.topic, 'UTF8'))
        || outbox.emit_field(convert_to(emit.partition_key, 'UTF8'))
        || outbox.emit_field(timestamptz_send(happened)));
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION outbox.emit(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) IS
    'Writes one event into the write-ahead log, in the caller''s transaction and without a row, and returns its ID. The parameters are those of outbox.publish.';

REVOKE ALL ON FUNCTION outbox.emit_field(bytea) FROM PUBLIC;
REVOKE ALL ON FUNCTION
    outbox.emit(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) FROM PUBLIC;

-- +goose StatementEnd
