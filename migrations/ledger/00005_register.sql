-- The calls that create rows, in this file and the two that follow: an event comes, perhaps again, and each of its
-- deliveries is registered for later, reserved, or made at once in the caller's own transaction.
--
-- All read before they write, so an event that comes again costs no write at all. What they then insert is inserted
-- ON CONFLICT DO NOTHING, which waits for a concurrent transaction that inserts the same key; when nothing came back,
-- the next statement, with a snapshot of its own, sees what that transaction committed, or the loop inserts anew.
-- Rows of one call are inserted and locked in the order of their keys, so that calls that overlap cannot deadlock.
-- Parameters' names are API, they equal the columns' names and are written function.parameter.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

CREATE OR REPLACE FUNCTION ledger.remember(tenant text, event_key text, event_type text, payload bytea, headers jsonb,
                                           occurred_at timestamptz, source text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    broken CONSTANT text[] := ledger.broken_rule(remember.tenant, remember.event_key, '', '-', remember.occurred_at, NULL);
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    ELSIF broken[1] = 'event_time' OR remember.occurred_at IS NULL THEN
        PERFORM ledger.refuse('occurred_at', 'must not be NULL and must be finite');
    ELSIF broken IS NOT NULL THEN
        PERFORM ledger.refuse(broken[1], broken[2]);
    ELSIF remember.event_type IS NULL OR char_length(remember.event_type) NOT BETWEEN 1 AND 64 THEN
        PERFORM ledger.refuse('event_type', 'must have 1 to 64 characters');
    ELSIF char_length(remember.source) > 255 THEN
        PERFORM ledger.refuse('source', 'must have at most 255 characters');
    ELSIF jsonb_typeof(remember.headers) <> 'object' THEN
        PERFORM ledger.refuse('headers', 'must be a JSON object or NULL');
    ELSIF remember.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    IF EXISTS (SELECT FROM ledger.events e WHERE e.tenant = remember.tenant AND e.event_key = remember.event_key) THEN
        RETURN false;
    END IF;
    INSERT INTO ledger.events (tenant, event_key, event_type, payload, headers, occurred_at, remembered_at, source)
    VALUES (remember.tenant, remember.event_key, remember.event_type, remember.payload, remember.headers,
            remember.occurred_at, clock_timestamp(), remember.source)
    ON CONFLICT (tenant, event_key) DO NOTHING;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION ledger.remember(text, text, text, bytea, jsonb, timestamptz, text) IS
    'Keeps what later attempts need of an event. Call it in the transaction that registers its deliveries. False: it is known already, and stays as it was.';

-- One look at where the rows would be saves a look for each, as often as an event is new. enable_*: a plan made while the
-- table was small must not read all of it, or all rows of an event, later.
CREATE OR REPLACE FUNCTION ledger.without_rows(tenant text, event_key text, recipients text[], channel text) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF (SELECT d.id FROM ledger.notification_dispatches d
        WHERE d.tenant = without_rows.tenant AND d.event_key = without_rows.event_key
          AND d.recipient BETWEEN without_rows.recipients[1] AND without_rows.recipients[cardinality(without_rows.recipients)] LIMIT 1) IS NULL THEN
        RETURN without_rows.recipients;
    END IF;
    RETURN ARRAY(
        SELECT u.recipient FROM unnest(without_rows.recipients) AS u (recipient)
        WHERE (
            SELECT d.id FROM ledger.notification_dispatches d
            WHERE d.tenant = without_rows.tenant AND d.event_key = without_rows.event_key AND d.recipient = u.recipient
              AND d.channel = without_rows.channel) IS NULL);
END
$$;
COMMENT ON FUNCTION ledger.without_rows(text, text, text[], text) IS
    'Recipients, given in order, for whom the event has no row on the channel. Internal.';

-- Rows that do not exist yet: target is the state they get unless their predecessor says otherwise. Those that another
-- transaction made meanwhile are missing from what is returned. recipients come in order.
CREATE OR REPLACE FUNCTION ledger.add_rows(tenant text, event_key text, INOUT recipients text[], channel text, target text,
                                           s ledger.channels, moment timestamptz, due_at timestamptz, worker text,
                                           payload_hash text, reason text, OUT ids bigint[], OUT states text[])
RETURNS record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    attempt CONSTANT integer := CASE WHEN add_rows.target IN ('reserved', 'delivered') THEN 1 ELSE 0 END;
    own_lease_until CONSTANT timestamptz := CASE add_rows.target WHEN 'reserved' THEN add_rows.due_at END;
    own_held_since CONSTANT timestamptz := CASE add_rows.target WHEN 'reserved' THEN add_rows.moment END;
    own_done_at CONSTANT timestamptz := CASE WHEN add_rows.target IN ('delivered', 'skipped') THEN add_rows.moment END;
BEGIN
    IF (add_rows.s).after_channel IS NULL THEN
        WITH made AS (
            INSERT INTO ledger.notification_dispatches
                (tenant, event_key, recipient, channel, state, fence, attempts, max_attempts, created_at, due_at, lease_until,
                 held_since, done_at, worker, payload_hash, reason)
            SELECT add_rows.tenant, add_rows.event_key, u.recipient, add_rows.channel, target, attempt, attempt,
                   (add_rows.s).max_attempts, moment, add_rows.due_at, own_lease_until, own_held_since,
                   own_done_at, add_rows.worker, add_rows.payload_hash, add_rows.reason
            FROM unnest(add_rows.recipients) AS u (recipient)
            ORDER BY u.recipient COLLATE "C"
            ON CONFLICT (tenant, event_key, recipient, channel) DO NOTHING
            RETURNING id, recipient
        )
        SELECT array_agg(m.id), array_agg(m.recipient) INTO ids, recipients FROM made m;
        states := array_fill(target, ARRAY[coalesce(cardinality(ids), 0)]);
        RETURN;
    END IF;
    WITH wanted AS (
        SELECT u.recipient, ledger.predecessor_step(
                   ledger.predecessor(add_rows.tenant, add_rows.event_key, u.recipient, (add_rows.s).after_channel), moment, '0', moment) AS step
        FROM unnest(add_rows.recipients) AS u (recipient)
        ORDER BY u.recipient COLLATE "C"
    ), made AS (
        INSERT INTO ledger.notification_dispatches
            (tenant, event_key, recipient, channel, state, fence, attempts, max_attempts, created_at, due_at, lease_until,
             held_since, blocked_since, done_at, worker, payload_hash, reason)
        SELECT add_rows.tenant, add_rows.event_key, w.recipient, add_rows.channel,
               CASE WHEN w.step IS NULL THEN target WHEN w.step = 'block' THEN 'pending' ELSE 'skipped' END,
               CASE WHEN w.step IS NULL THEN attempt ELSE 0 END, CASE WHEN w.step IS NULL THEN attempt ELSE 0 END,
               (add_rows.s).max_attempts, moment,
               CASE WHEN w.step IS NULL THEN add_rows.due_at
                    WHEN w.step = 'block' AND target = 'pending' THEN greatest(add_rows.due_at, moment + interval '1 second')
                    WHEN w.step = 'block' THEN moment + interval '1 second' END,
               CASE WHEN w.step IS NULL THEN own_lease_until END,
               CASE WHEN w.step IS NULL THEN own_held_since END,
               CASE WHEN w.step = 'block' THEN moment END,
               CASE WHEN w.step IS NULL THEN own_done_at WHEN w.step <> 'block' THEN moment END,
               CASE WHEN w.step IS NULL THEN add_rows.worker END, add_rows.payload_hash,
               CASE WHEN w.step IS NULL THEN add_rows.reason WHEN w.step <> 'block' THEN w.step END
        FROM wanted w
        ON CONFLICT (tenant, event_key, recipient, channel) DO NOTHING
        RETURNING id, recipient, state
    )
    SELECT array_agg(m.id), array_agg(m.recipient), array_agg(m.state) INTO ids, recipients, states FROM made m;
END
$$;
COMMENT ON FUNCTION ledger.add_rows(text, text, text[], text, text, ledger.channels, timestamptz, timestamptz, text, text, text) IS
    'Inserts the rows of an event that do not exist yet and returns those it made. Internal.';

CREATE OR REPLACE FUNCTION ledger.register_batch(
    tenant       text,
    event_key    text,
    recipients   text[],
    channel      text,
    event_time   timestamptz,
    not_before   timestamptz DEFAULT NULL,
    payload_hash text        DEFAULT NULL,
    OUT inserted integer,
    OUT known    integer,
    OUT expired  integer
) RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s CONSTANT ledger.channels := ledger.check_creation(register_batch.tenant, register_batch.event_key, '', register_batch.channel, register_batch.event_time, register_batch.payload_hash);
    keys CONSTANT text[] := ledger.check_recipients(register_batch.recipients);
    fresh CONSTANT text[] := ledger.without_rows(register_batch.tenant, register_batch.event_key, keys, register_batch.channel);
    moment CONSTANT timestamptz := clock_timestamp();
    r record;
    d ledger.notification_dispatches;
BEGIN
    IF NOT isfinite(register_batch.not_before) THEN
        PERFORM ledger.refuse('not_before', 'must be finite');
    END IF;
    inserted := 0;
    expired := 0;
    IF s.horizon > '0' AND register_batch.event_time < moment - s.horizon THEN
        expired := cardinality(fresh);
    ELSIF cardinality(fresh) > 0 THEN
        SELECT coalesce(cardinality(a.ids), 0) INTO inserted
        FROM ledger.add_rows(register_batch.tenant, register_batch.event_key, fresh, register_batch.channel, 'pending', s, moment,
                             greatest(moment, register_batch.not_before), NULL, register_batch.payload_hash, NULL) a;
    END IF;
    known := cardinality(keys) - inserted - expired;

    -- Rows that waited for their predecessor learn what became of it.
    IF s.after_channel IS NOT NULL AND known > 0 THEN
        FOR r IN
            SELECT (x.d).id, p.predecessor
            FROM unnest(keys) AS k (recipient)
            CROSS JOIN LATERAL (
                SELECT t AS d FROM ledger.notification_dispatches t
                WHERE t.tenant = register_batch.tenant AND t.event_key = register_batch.event_key AND t.recipient = k.recipient
                  AND t.channel = register_batch.channel LIMIT 1) x
            CROSS JOIN LATERAL (SELECT CASE WHEN s.after_channel IS NULL THEN 'delivered' ELSE ledger.predecessor(register_batch.tenant, register_batch.event_key, k.recipient, s.after_channel) END OFFSET 0) p (predecessor)
            WHERE (x.d).state IN ('pending', 'failed') AND ledger.predecessor_step(p.predecessor, (x.d).created_at, s.horizon, moment) IS NOT NULL
            ORDER BY k.recipient COLLATE "C"
        LOOP
            SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = r.id FOR NO KEY UPDATE;
            IF d.state IN ('pending', 'failed') THEN
                PERFORM ledger.take_step(d, ledger.predecessor_step(r.predecessor, d.created_at, s.horizon, moment), moment, NULL, NULL, NULL);
            END IF;
        END LOOP;
    END IF;
END
$$;
COMMENT ON FUNCTION ledger.register_batch(text, text, text[], text, timestamptz, timestamptz, text) IS
    'Makes one event''s deliveries known without reserving them; claim_due hands them out, not before not_before. Counts the distinct recipients: inserted, known before, expired.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
