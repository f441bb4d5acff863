-- What relay deliver needs beside the ledger: settings of channels from its rules file, the type that an event key was
-- first used with, and a place for records that cannot be handled.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

CREATE TABLE IF NOT EXISTS ledger.parked_records (
    id            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    parked_at     timestamptz NOT NULL,
    record_offset bigint      NOT NULL,
    partition     integer     NOT NULL,
    topic         text COLLATE "C" NOT NULL,
    class         text COLLATE "C" NOT NULL,
    reason        text        NOT NULL,
    digest        bytea       NOT NULL,
    record_key    bytea,
    record_value  bytea,
    headers       jsonb       NOT NULL,

    CONSTRAINT parked_records_pkey PRIMARY KEY (id),
    CONSTRAINT parked_records_record UNIQUE (topic, partition, record_offset, digest)
);
COMMENT ON TABLE ledger.parked_records IS
    'Records that relay deliver could not handle, whole, for a person to decide. It went on behind them.';
COMMENT ON COLUMN ledger.parked_records.id IS
    'Short name of the row.';
COMMENT ON COLUMN ledger.parked_records.parked_at IS
    'When it was parked first; reading the topic again parks nothing twice.';
COMMENT ON COLUMN ledger.parked_records.record_offset IS
    'Offset of the record.';
COMMENT ON COLUMN ledger.parked_records.partition IS
    'Partition of the topic.';
COMMENT ON COLUMN ledger.parked_records.topic IS
    'Topic it was read from.';
COMMENT ON COLUMN ledger.parked_records.class IS
    'What is wrong with it, one of a few words; docs/notifications.md lists them.';
COMMENT ON COLUMN ledger.parked_records.reason IS
    'The same for a person.';
COMMENT ON COLUMN ledger.parked_records.digest IS
    'SHA-256 of key and value: a topic that was made anew has other records at the same offsets.';
COMMENT ON COLUMN ledger.parked_records.record_key IS
    'The record''s key; NULL as in the topic.';
COMMENT ON COLUMN ledger.parked_records.record_value IS
    'The record''s value; NULL as in the topic.';
COMMENT ON COLUMN ledger.parked_records.headers IS
    'The record''s headers, an object.';

ALTER TABLE ledger.parked_records ENABLE ROW LEVEL SECURITY;
DO $$
BEGIN
    -- A record that cannot be read has no tenant, so who is limited to tenants sees none.
    IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = 'ledger.parked_records'::regclass AND p.polname = 'own_tenants') THEN
        CREATE POLICY own_tenants ON ledger.parked_records USING ((SELECT ledger.own_tenants()) IS NULL);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ledger.park_record(topic text, partition integer, record_offset bigint, class text, reason text,
                                              record_key bytea, record_value bytea, headers jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
BEGIN
    IF ledger.own_tenants() IS NOT NULL THEN
        PERFORM ledger.refuse_tenant();
    ELSIF park_record.topic IS NULL OR park_record.partition IS NULL OR park_record.record_offset IS NULL THEN
        PERFORM ledger.refuse('topic', 'must not be NULL, nor partition or record_offset');
    ELSIF park_record.class IS NULL OR char_length(park_record.class) NOT BETWEEN 1 AND 64 THEN
        PERFORM ledger.refuse('class', 'must have 1 to 64 characters');
    ELSIF jsonb_typeof(park_record.headers) IS DISTINCT FROM 'object' THEN
        PERFORM ledger.refuse('headers', 'must be a JSON object');
    END IF;
    INSERT INTO ledger.parked_records (parked_at, topic, partition, record_offset, class, reason, digest, record_key, record_value, headers)
    VALUES (clock_timestamp(), park_record.topic, park_record.partition, park_record.record_offset, park_record.class,
            left(coalesce(park_record.reason, ''), 1000),
            sha256(sha256(coalesce(park_record.record_key, '')) || sha256(coalesce(park_record.record_value, ''))),
            park_record.record_key, park_record.record_value, park_record.headers)
    ON CONFLICT (topic, partition, record_offset, digest) DO NOTHING;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION ledger.park_record(text, integer, bigint, text, text, bytea, bytea, jsonb) IS
    'Keeps a record that cannot be handled. False: it is there already.';

CREATE OR REPLACE FUNCTION ledger.remembered_type(tenant text, event_key text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF remembered_type.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    RETURN (SELECT e.event_type FROM ledger.events e WHERE e.tenant = remembered_type.tenant AND e.event_key = remembered_type.event_key);
END
$$;
COMMENT ON FUNCTION ledger.remembered_type(text, text) IS
    'Event type that a key was first remembered with; NULL: never. Another one means that a key names two events.';

CREATE OR REPLACE FUNCTION ledger.configure_channel(
    channel         text,
    mode            text     DEFAULT NULL,
    on_uncertain    text     DEFAULT NULL,
    provider_window interval DEFAULT NULL,
    after_channel   text     DEFAULT NULL,
    max_attempts    integer  DEFAULT NULL,
    lease           interval DEFAULT NULL,
    backoff_min     interval DEFAULT NULL,
    backoff_max     interval DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    known   boolean;
    differs boolean;
BEGIN
    IF ledger.own_tenants() IS NOT NULL THEN
        PERFORM ledger.refuse_tenant();
    ELSIF configure_channel.channel IS NULL OR configure_channel.channel = '*' THEN
        PERFORM ledger.refuse('channel', 'must name one channel');
    END IF;
    -- mode and on_uncertain decide what a doubt leads to. Who runs the ledger may have made them stricter, after a restore
    -- for one, so a worker that starts says them only of a channel that is new.
    SELECT configure_channel.mode <> f.mode OR configure_channel.on_uncertain <> f.on_uncertain
    INTO differs
    FROM ledger.channels_in_force f WHERE f.channel = configure_channel.channel;
    known := FOUND;
    -- What holds already is not written, so that starting a worker locks nothing. after_channel is said whole.
    IF known AND EXISTS (SELECT FROM ledger.channels c WHERE c.channel = configure_channel.channel
               AND coalesce(configure_channel.provider_window, c.provider_window) IS NOT DISTINCT FROM c.provider_window
               AND configure_channel.after_channel IS NOT DISTINCT FROM c.after_channel
               AND coalesce(configure_channel.max_attempts, c.max_attempts) IS NOT DISTINCT FROM c.max_attempts
               AND coalesce(configure_channel.lease, c.lease) IS NOT DISTINCT FROM c.lease
               AND coalesce(configure_channel.backoff_min, c.backoff_min) IS NOT DISTINCT FROM c.backoff_min
               AND coalesce(configure_channel.backoff_max, c.backoff_max) IS NOT DISTINCT FROM c.backoff_max) THEN
        RETURN CASE WHEN differs THEN 'differs' ELSE 'unchanged' END;
    END IF;
    INSERT INTO ledger.channels AS c (channel, mode, on_uncertain, provider_window, after_channel, max_attempts, lease, backoff_min, backoff_max)
    VALUES (configure_channel.channel, configure_channel.mode, configure_channel.on_uncertain, configure_channel.provider_window,
            configure_channel.after_channel, configure_channel.max_attempts, configure_channel.lease, configure_channel.backoff_min,
            configure_channel.backoff_max)
    ON CONFLICT (channel) DO UPDATE
    SET provider_window = coalesce(excluded.provider_window, c.provider_window), after_channel = excluded.after_channel,
        max_attempts = coalesce(excluded.max_attempts, c.max_attempts), lease = coalesce(excluded.lease, c.lease),
        backoff_min = coalesce(excluded.backoff_min, c.backoff_min), backoff_max = coalesce(excluded.backoff_max, c.backoff_max);
    RETURN CASE WHEN NOT known THEN 'made' WHEN differs THEN 'differs' ELSE 'changed' END;
END
$$;
COMMENT ON FUNCTION ledger.configure_channel(text, text, text, interval, text, integer, interval, interval, interval) IS
    'Makes a channel or changes its settings, but for mode and on_uncertain: made, changed or unchanged; differs: these two are not what was said. NULL leaves a setting as it is, except after_channel. Not for roles that are limited to tenants.';

CREATE OR REPLACE FUNCTION ledger.wake_followers(tenant text, event_key text, recipient text, channel text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    woken integer;
BEGIN
    IF wake_followers.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    -- Nobody is waited for: a row that is locked is being looked at.
    UPDATE ledger.notification_dispatches AS t
    SET due_at = moment
    WHERE t.id = ANY (ARRAY(
        SELECT d.id FROM ledger.channels_in_force f
        JOIN ledger.notification_dispatches d
            ON d.tenant = wake_followers.tenant AND d.event_key = wake_followers.event_key AND d.recipient = wake_followers.recipient
               AND d.channel = f.channel
        WHERE f.after_channel = wake_followers.channel AND d.state = 'pending' AND d.blocked_since IS NOT NULL AND d.due_at > moment
        FOR NO KEY UPDATE OF d SKIP LOCKED));
    GET DIAGNOSTICS woken = ROW_COUNT;
    RETURN woken;
END
$$;
COMMENT ON FUNCTION ledger.wake_followers(text, text, text, text) IS
    'Makes deliveries due that wait for the one on this channel, which is at its end. Returns how many. Without it they are looked at by and by: after a second, and then after ever longer, up to a minute.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
