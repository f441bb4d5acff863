-- The calls that create rows: an event comes, perhaps again, and each of its deliveries is reserved, registered for
-- later, or made at once in the caller's own transaction.
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

-- Rows that do not exist yet: target is the state they get unless their predecessor says otherwise. Those that another
-- transaction made meanwhile are missing from what is returned.
CREATE OR REPLACE FUNCTION ledger.add_rows(tenant text, event_key text, INOUT recipients text[], channel text, target text,
                                           s ledger.channels, moment timestamptz, due_at timestamptz, worker text,
                                           payload_hash text, reason text, OUT ids bigint[], OUT states text[], OUT waits timestamptz[])
RETURNS record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    attempt CONSTANT integer := CASE WHEN add_rows.target IN ('reserved', 'delivered') THEN 1 ELSE 0 END;
BEGIN
    WITH wanted AS (
        SELECT u.recipient, ledger.predecessor_step(p.predecessor, moment, '0', moment) AS step
        FROM unnest(add_rows.recipients) AS u (recipient)
        CROSS JOIN LATERAL (SELECT CASE WHEN (add_rows.s).after_channel IS NULL THEN 'delivered' ELSE ledger.predecessor(add_rows.tenant, add_rows.event_key, u.recipient, (add_rows.s).after_channel) END OFFSET 0) p (predecessor)
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
               CASE WHEN w.step IS NULL AND target = 'reserved' THEN add_rows.due_at END,
               CASE WHEN w.step IS NULL AND target = 'reserved' THEN moment END,
               CASE WHEN w.step = 'block' THEN moment END,
               CASE WHEN w.step IS NULL AND target IN ('delivered', 'skipped') OR w.step IN ('after_skipped', 'after_dead') THEN moment END,
               CASE WHEN w.step IS NULL THEN add_rows.worker END, add_rows.payload_hash,
               CASE WHEN w.step IS NULL THEN add_rows.reason WHEN w.step <> 'block' THEN w.step END
        FROM wanted w
        ON CONFLICT (tenant, event_key, recipient, channel) DO NOTHING
        RETURNING id, recipient, state, due_at
    )
    SELECT array_agg(m.id), array_agg(m.recipient), array_agg(m.state), array_agg(m.due_at)
    INTO ids, recipients, states, waits FROM made m;
END
$$;
COMMENT ON FUNCTION ledger.add_rows(text, text, text[], text, text, ledger.channels, timestamptz, timestamptz, text, text, text) IS
    'Inserts the rows of an event that do not exist yet and returns those it made. Internal.';

-- reserve in all cases, after the arguments were found good. No outcome: the row has come or gone meanwhile, look again.
CREATE OR REPLACE FUNCTION ledger.reserve_row(tenant text, event_key text, recipient text, channel text, worker text,
                                              event_time timestamptz, lease interval, payload_hash text, OUT outcome text, OUT id bigint, OUT fence bigint, OUT attempt integer,
                                              OUT lease_until timestamptz, OUT lease_ms bigint, OUT provider_key text,
                                              OUT retry_after_ms bigint, OUT result jsonb)
RETURNS record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    predecessor text;
    step text;
    r record;
    s ledger.channels;
    d ledger.notification_dispatches;
BEGIN
    SELECT f.* INTO s FROM ledger.settings(reserve_row.channel) f;
    predecessor := ledger.predecessor(reserve_row.tenant, reserve_row.event_key, reserve_row.recipient, s.after_channel);
    SELECT t.* INTO d FROM ledger.notification_dispatches t
    WHERE t.tenant = reserve_row.tenant AND t.event_key = reserve_row.event_key AND t.recipient = reserve_row.recipient
      AND t.channel = reserve_row.channel;
    IF NOT FOUND THEN
        IF s.horizon > '0' AND reserve_row.event_time < moment - s.horizon THEN
            outcome := 'expired';
            RETURN;
        END IF;
        SELECT a.* INTO r
        FROM ledger.add_rows(reserve_row.tenant, reserve_row.event_key, ARRAY[reserve_row.recipient], reserve_row.channel, 'reserved', s,
                             moment, moment + reserve_row.lease, reserve_row.worker, reserve_row.payload_hash, NULL) a;
        IF r.ids IS NULL THEN
            RETURN;
        END IF;
        SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = r.ids[1];
        outcome := CASE d.state WHEN 'pending' THEN 'blocked' WHEN 'skipped' THEN 'already_skipped' ELSE d.state END;
    ELSE
        step := ledger.next_step(d, s, predecessor, moment);
        -- What changes nothing needs no lock.
        IF step NOT IN ('already_delivered', 'already_reserved', 'already_skipped', 'dead', 'uncertain', 'not_due') AND NOT (step = 'block' AND d.state = 'pending' AND d.due_at > moment AND d.blocked_since IS NOT NULL) THEN
            SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = d.id FOR NO KEY UPDATE;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            moment := clock_timestamp(); -- the lock may have taken its time
            step := ledger.next_step(d, s, predecessor, moment);
        END IF;
        IF d.payload_hash <> reserve_row.payload_hash THEN
            outcome := 'payload_mismatch';
        ELSE
            SELECT t.* INTO r FROM ledger.take_step(d, step, moment, reserve_row.worker, reserve_row.lease, reserve_row.payload_hash) t;
            d := r.d;
            outcome := r.outcome;
        END IF;
    END IF;
    id := d.id;
    IF outcome = 'reserved' THEN
        fence := d.fence;
        attempt := d.attempts;
        lease_until := d.lease_until;
        lease_ms := ledger.milliseconds(d.lease_until - moment);
        provider_key := ledger.provider_key(d.tenant, d.event_key, d.recipient, d.channel, d.generation);
    ELSIF outcome <> 'payload_mismatch' THEN
        retry_after_ms := ledger.retry_after(d.due_at, moment);
        result := CASE outcome WHEN 'already_delivered' THEN d.result END;
    END IF;
END
$$;
COMMENT ON FUNCTION ledger.reserve_row(text, text, text, text, text, timestamptz, interval, text) IS
    'Reserves a row in the cases that are not plain. Internal.';

CREATE OR REPLACE FUNCTION ledger.reserve(
    tenant       text,
    event_key    text,
    recipient    text,
    channel      text,
    worker       text,
    event_time   timestamptz,
    lease        interval DEFAULT NULL,
    payload_hash text     DEFAULT NULL,
    OUT outcome        text,
    OUT id             bigint,
    OUT fence          bigint,
    OUT attempt        integer,
    OUT lease_until    timestamptz,
    OUT lease_ms       bigint,
    OUT provider_key   text,
    OUT retry_after_ms bigint,
    OUT result         jsonb
) RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz;
    plain boolean;
    span interval;
    tries integer;
    state text;
    due_at timestamptz;
    stored_hash text;
    s ledger.channels;
BEGIN
    LOOP
        moment := clock_timestamp();
        -- One query decides the two cases that are nearly all: a new event, which is plain if nothing calls for a closer
        -- look, and one that comes again. What is NULL is not plain.
        SELECT f.plain AND reserve.event_time >= moment - f.horizon AND reserve.event_time < 'infinity'
               AND char_length(reserve.tenant) <= 64 AND char_length(reserve.event_key) BETWEEN 1 AND 255
               AND char_length(reserve.recipient) <= 255 AND char_length(reserve.worker) BETWEEN 1 AND 255
               AND (reserve.lease IS NULL OR reserve.lease > '0' AND reserve.lease <= f.hold_cap)
               AND (reserve.payload_hash IS NULL OR reserve.payload_hash ~ '^sha256:[0-9a-f]{64}$')
               AND current_setting('transaction_isolation') = 'read committed',
               coalesce(reserve.lease, f.lease), f.max_attempts, d.id, d.state, d.due_at, d.payload_hash, d.result
        INTO plain, span, tries, id, state, due_at, stored_hash, result
        FROM ledger.channels_in_force f
        LEFT JOIN ledger.notification_dispatches d
            ON d.tenant = reserve.tenant AND d.event_key = reserve.event_key AND d.recipient = reserve.recipient
               AND d.channel = reserve.channel
        WHERE f.channel = reserve.channel;
        IF plain THEN
            NULL;
        ELSE
            s := ledger.check_creation(reserve.tenant, reserve.event_key, reserve.recipient, reserve.channel, reserve.event_time, reserve.payload_hash);
            PERFORM ledger.check_worker(reserve.worker);
            span := ledger.check_lease(reserve.lease, s);
        END IF;
        IF id IS NOT NULL THEN
            outcome := CASE WHEN stored_hash <> reserve.payload_hash THEN 'payload_mismatch' ELSE ledger.settled_answer(state, due_at, moment) END;
            IF outcome IS NOT NULL THEN
                retry_after_ms := CASE outcome WHEN 'already_reserved' THEN ledger.retry_after(due_at, moment) END;
                result := CASE outcome WHEN 'already_delivered' THEN result END;
                RETURN;
            END IF;
        END IF;

        BEGIN -- one subtransaction for a call that writes: a lock not had in time becomes an answer
            IF plain AND id IS NULL THEN
                INSERT INTO ledger.notification_dispatches AS t
                    (tenant, event_key, recipient, channel, state, fence, attempts, max_attempts, created_at, due_at,
                     lease_until, held_since, worker, payload_hash)
                VALUES (reserve.tenant, reserve.event_key, reserve.recipient, reserve.channel, 'reserved', 1, 1, tries,
                        moment, moment + span, moment + span, moment, reserve.worker, reserve.payload_hash)
                ON CONFLICT (tenant, event_key, recipient, channel) DO NOTHING
                RETURNING 'reserved', t.id, 1, 1, t.lease_until, ledger.milliseconds(t.lease_until - t.held_since),
                          ledger.provider_key(t.tenant, t.event_key, t.recipient, t.channel, 1)
                INTO outcome, id, fence, attempt, lease_until, lease_ms, provider_key;
            ELSE
                SELECT b.* INTO outcome, id, fence, attempt, lease_until, lease_ms, provider_key, retry_after_ms, result
                FROM ledger.reserve_row(reserve.tenant, reserve.event_key, reserve.recipient, reserve.channel, reserve.worker,
                                        reserve.event_time, span, reserve.payload_hash) b;
            END IF;
            IF outcome IS NOT NULL THEN
                RETURN;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            outcome := 'busy';
            id := NULL;
            RETURN;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION ledger.reserve(text, text, text, text, text, timestamptz, interval, text) IS
    'Reserves one delivery. Outcome reserved: it is the caller''s until lease_until, under id and fence. Else already_delivered (with its result), already_reserved, already_skipped, blocked, not_due, uncertain, dead, expired, payload_mismatch, busy.';

CREATE OR REPLACE FUNCTION ledger.reserve_batch(
    tenant       text,
    event_key    text,
    recipients   text[],
    channel      text,
    worker       text,
    event_time   timestamptz,
    lease        interval DEFAULT NULL,
    payload_hash text     DEFAULT NULL
) RETURNS TABLE (recipient text, outcome text, id bigint, fence bigint, attempt integer, lease_ms bigint, provider_key text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    s CONSTANT ledger.channels := ledger.check_creation(reserve_batch.tenant, reserve_batch.event_key, '', reserve_batch.channel, reserve_batch.event_time, reserve_batch.payload_hash);
    span CONSTANT interval := ledger.check_lease(reserve_batch.lease, s);
    keys text[] := ledger.check_recipients(reserve_batch.recipients);
    moment timestamptz := clock_timestamp();
    expired boolean;
    made record;
    r record;
    d ledger.notification_dispatches;
BEGIN
    PERFORM ledger.check_worker(reserve_batch.worker);
    expired := s.horizon > '0' AND coalesce(reserve_batch.event_time < moment - s.horizon, false);
    IF NOT expired THEN
        SELECT a.* INTO made
        FROM ledger.add_rows(reserve_batch.tenant, reserve_batch.event_key,
                             ledger.without_rows(reserve_batch.tenant, reserve_batch.event_key, keys, reserve_batch.channel),
                             reserve_batch.channel, 'reserved', s, moment, moment + span, reserve_batch.worker, reserve_batch.payload_hash, NULL) a;
        RETURN QUERY
            SELECT m.recipient, CASE m.state WHEN 'pending' THEN 'blocked' WHEN 'skipped' THEN 'already_skipped' ELSE m.state END, m.id,
                   CASE m.state WHEN 'reserved' THEN 1::bigint END, CASE m.state WHEN 'reserved' THEN 1 END,
                   CASE m.state WHEN 'reserved' THEN ledger.milliseconds(moment + span - moment) END,
                   CASE m.state WHEN 'reserved' THEN ledger.provider_key(reserve_batch.tenant, reserve_batch.event_key, m.recipient, reserve_batch.channel, 1) END
            FROM unnest(made.ids, made.recipients, made.states) AS m (id, recipient, state);
        IF cardinality(made.ids) = cardinality(keys) THEN
            RETURN;
        END IF;
        keys := ARRAY(SELECT k COLLATE "C" FROM unnest(keys) AS k EXCEPT SELECT k COLLATE "C" FROM unnest(made.recipients) AS k ORDER BY 1);
    END IF;

    FOR r IN
        SELECT k.recipient, (x.d).id, (x.d).payload_hash <> reserve_batch.payload_hash AS mismatch, p.predecessor,
               ledger.next_step(x.d, s, p.predecessor, moment) AS step
        FROM unnest(keys) AS k (recipient)
        LEFT JOIN LATERAL (
            SELECT t AS d FROM ledger.notification_dispatches t
            WHERE t.tenant = reserve_batch.tenant AND t.event_key = reserve_batch.event_key AND t.recipient = k.recipient
              AND t.channel = reserve_batch.channel LIMIT 1) x ON true
        CROSS JOIN LATERAL (SELECT CASE WHEN s.after_channel IS NULL THEN 'delivered' ELSE ledger.predecessor(reserve_batch.tenant, reserve_batch.event_key, k.recipient, s.after_channel) END OFFSET 0) p (predecessor)
        ORDER BY k.recipient COLLATE "C"
    LOOP
        recipient := r.recipient;
        id := r.id;
        fence := NULL;
        attempt := NULL;
        lease_ms := NULL;
        provider_key := NULL;
        IF r.id IS NULL THEN
            -- It was there when the rows were inserted and is purged since. To insert it now, with locks held that
            -- come after it in order, could deadlock.
            outcome := CASE WHEN expired THEN 'expired' ELSE 'busy' END;
        ELSIF r.mismatch THEN
            outcome := 'payload_mismatch';
        ELSIF r.step IN ('already_delivered', 'already_reserved', 'already_skipped', 'dead', 'uncertain', 'not_due') THEN
            outcome := r.step;
        ELSE
            SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = r.id FOR NO KEY UPDATE;
            moment := clock_timestamp();
            IF NOT FOUND THEN
                outcome := 'busy';
                id := NULL;
            ELSIF d.payload_hash <> reserve_batch.payload_hash THEN
                outcome := 'payload_mismatch';
            ELSE
                SELECT t.* INTO made
                FROM ledger.take_step(d, ledger.next_step(d, s, r.predecessor, moment), moment, reserve_batch.worker, span, reserve_batch.payload_hash) t;
                d := made.d;
                outcome := made.outcome;
            END IF;
            IF outcome = 'reserved' THEN
                fence := d.fence;
                attempt := d.attempts;
                lease_ms := ledger.milliseconds(d.lease_until - moment);
                provider_key := ledger.provider_key(d.tenant, d.event_key, d.recipient, d.channel, d.generation);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION ledger.reserve_batch(text, text, text[], text, text, timestamptz, interval, text) IS
    'Reserves one event''s delivery to many recipients, 10000 at most: one row for each distinct one, with reserve''s outcomes, in no order. A lock not had within 2 s raises 55P03.';

CREATE OR REPLACE FUNCTION ledger.without_rows(tenant text, event_key text, recipients text[], channel text) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(
        SELECT u.recipient FROM unnest(without_rows.recipients) AS u (recipient)
        WHERE (
            SELECT d.id FROM ledger.notification_dispatches d
            WHERE d.tenant = without_rows.tenant AND d.event_key = without_rows.event_key AND d.recipient = u.recipient
              AND d.channel = without_rows.channel) IS NULL);
END
$$;
COMMENT ON FUNCTION ledger.without_rows(text, text, text[], text) IS
    'Recipients for whom the event has no row on the channel, in the given order. Internal.';

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

-- One delivery of once, after its arguments were found good.
CREATE OR REPLACE FUNCTION ledger.once_row(tenant text, event_key text, recipient text, channel text, s ledger.channels,
                                           event_time timestamptz, payload_hash text, skip_reason text, may_insert boolean)
RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target CONSTANT text := CASE WHEN once_row.skip_reason IS NULL THEN 'delivered' ELSE 'skipped' END;
    moment timestamptz;
    predecessor text;
    step text;
    locked boolean := false;
    d ledger.notification_dispatches;
BEGIN
    LOOP
        moment := clock_timestamp();
        SELECT CASE WHEN (once_row.s).after_channel IS NULL THEN 'delivered' ELSE coalesce((
                   SELECT a.state FROM ledger.notification_dispatches a
                   WHERE a.tenant = once_row.tenant AND a.event_key = once_row.event_key AND a.recipient = once_row.recipient
                     AND a.channel = (once_row.s).after_channel), 'absent') END
        INTO predecessor;
        SELECT t.* INTO d FROM ledger.notification_dispatches t
        WHERE t.tenant = once_row.tenant AND t.event_key = once_row.event_key AND t.recipient = once_row.recipient
          AND t.channel = once_row.channel;
        IF NOT FOUND THEN
            IF (once_row.s).horizon > '0' AND once_row.event_time < moment - (once_row.s).horizon THEN
                RETURN 'expired';
            ELSIF NOT once_row.may_insert THEN
                RETURN 'busy'; -- purged since the caller's insert, see reserve_batch
            END IF;
            SELECT CASE WHEN a.states[1] = 'pending' THEN 'blocked'
                        WHEN predecessor IN ('skipped', 'dead') THEN 'already_skipped' ELSE a.states[1] END
            INTO step
            FROM ledger.add_rows(once_row.tenant, once_row.event_key, ARRAY[once_row.recipient], once_row.channel, target, once_row.s,
                                 moment, NULL, NULL, once_row.payload_hash, once_row.skip_reason) a
            WHERE a.ids IS NOT NULL;
            IF FOUND THEN
                RETURN step;
            END IF;
            CONTINUE;
        END IF;

        LOOP
            IF d.payload_hash <> once_row.payload_hash THEN
                RETURN 'payload_mismatch';
            END IF;
            step := ledger.once_step(d, once_row.s, predecessor, moment);
            IF step IN ('already_delivered', 'already_reserved', 'already_skipped', 'dead', 'uncertain') THEN
                RETURN step;
            END IF;
            EXIT WHEN locked;
            SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = d.id FOR NO KEY UPDATE;
            EXIT WHEN NOT FOUND;
            locked := true;
            moment := clock_timestamp(); -- the lock may have taken its time: decide again
        END LOOP;
        CONTINUE WHEN NOT locked; -- purged since

        IF step <> 'deliver' THEN
            SELECT t.outcome INTO step FROM ledger.take_step(d, step, moment, NULL, NULL, NULL) t;
            RETURN step;
        END IF;
        IF d.state = 'reserved' THEN
            PERFORM ledger.end_attempt(d, 'lease_over', NULL, moment);
        END IF;
        UPDATE ledger.notification_dispatches AS t
        SET state = target, fence = t.fence + 1, due_at = NULL, lease_until = NULL, held_since = NULL, blocked_since = NULL,
            done_at = moment, reason = once_row.skip_reason, payload_hash = coalesce(t.payload_hash, once_row.payload_hash)
        WHERE t.id = d.id;
        RETURN target;
    END LOOP;
END
$$;
COMMENT ON FUNCTION ledger.once_row(text, text, text, text, ledger.channels, timestamptz, text, text, boolean) IS
    'Delivers or skips one row in the caller''s transaction, and says what became of it. Internal.';

CREATE OR REPLACE FUNCTION ledger.once(
    tenant       text,
    event_key    text,
    recipient    text,
    channel      text,
    event_time   timestamptz,
    payload_hash text DEFAULT NULL,
    skip_reason  text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    plain boolean;
    tries integer;
    found_id bigint;
    state text;
    due_at timestamptz;
    stored_hash text;
    answer text;
    s ledger.channels;
BEGIN
    -- As in reserve: the two cases that are nearly all cost one query, and one insert.
    SELECT f.plain AND once.event_time >= moment - f.horizon AND once.event_time < 'infinity'
           AND char_length(once.tenant) <= 64 AND char_length(once.event_key) BETWEEN 1 AND 255 AND char_length(once.recipient) <= 255
           AND (once.payload_hash IS NULL OR once.payload_hash ~ '^sha256:[0-9a-f]{64}$') AND once.skip_reason IS NULL
           AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') IN ('on', 'remote_apply'),
           f.max_attempts, d.id, d.state, d.due_at, d.payload_hash
    INTO plain, tries, found_id, state, due_at, stored_hash
    FROM ledger.channels_in_force f
    LEFT JOIN ledger.notification_dispatches d
        ON d.tenant = once.tenant AND d.event_key = once.event_key AND d.recipient = once.recipient AND d.channel = once.channel
    WHERE f.channel = once.channel;
    IF plain THEN
        NULL;
    ELSE
        s := ledger.check_creation(once.tenant, once.event_key, once.recipient, once.channel, once.event_time, once.payload_hash);
        PERFORM ledger.commit_durably();
    END IF;
    IF found_id IS NOT NULL THEN
        answer := CASE WHEN stored_hash <> once.payload_hash THEN 'payload_mismatch' ELSE ledger.settled_answer(state, due_at, moment) END;
        IF answer IS NOT NULL THEN
            RETURN answer;
        END IF;
    END IF;

    BEGIN
        IF plain AND found_id IS NULL THEN
            INSERT INTO ledger.notification_dispatches
                (tenant, event_key, recipient, channel, state, fence, attempts, max_attempts, created_at, done_at, payload_hash)
            VALUES (once.tenant, once.event_key, once.recipient, once.channel, 'delivered', 1, 1, tries, moment, moment, once.payload_hash)
            ON CONFLICT (tenant, event_key, recipient, channel) DO NOTHING;
            IF FOUND THEN
                RETURN 'delivered';
            END IF;
        END IF;
        SELECT f.* INTO s FROM ledger.settings(once.channel) f;
        RETURN ledger.once_row(once.tenant, once.event_key, once.recipient, once.channel, s, once.event_time, once.payload_hash,
                               left(once.skip_reason, 1000), true);
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'busy';
    END;
END
$$;
COMMENT ON FUNCTION ledger.once(text, text, text, text, timestamptz, text, text) IS
    'Delivery without a reservation, exactly once: write the row it guards in the same transaction, and only if the answer is delivered. With skip_reason it is skipped instead. Other answers are those of reserve.';

CREATE OR REPLACE FUNCTION ledger.once_batch(
    tenant       text,
    event_key    text,
    recipients   text[],
    channel      text,
    event_time   timestamptz,
    payload_hash text DEFAULT NULL
) RETURNS TABLE (recipient text, outcome text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    s CONSTANT ledger.channels := ledger.check_creation(once_batch.tenant, once_batch.event_key, '', once_batch.channel, once_batch.event_time, once_batch.payload_hash);
    keys CONSTANT text[] := ledger.check_recipients(once_batch.recipients);
    moment CONSTANT timestamptz := clock_timestamp();
    fresh text[];
    made record;
BEGIN
    PERFORM ledger.commit_durably();
    IF s.horizon = '0' OR once_batch.event_time IS NULL OR once_batch.event_time >= moment - s.horizon THEN
        fresh := ledger.without_rows(once_batch.tenant, once_batch.event_key, keys, once_batch.channel);
    END IF;
    SELECT a.* INTO made
    FROM ledger.add_rows(once_batch.tenant, once_batch.event_key, coalesce(fresh, '{}'), once_batch.channel, 'delivered', s, moment, NULL, NULL,
                         once_batch.payload_hash, NULL) a;
    RETURN QUERY
        SELECT m.recipient, CASE m.state WHEN 'pending' THEN 'blocked' WHEN 'skipped' THEN 'already_skipped' ELSE m.state END
        FROM unnest(made.recipients, made.states) AS m (recipient, state);
    RETURN QUERY
        SELECT k.recipient, ledger.once_row(once_batch.tenant, once_batch.event_key, k.recipient, once_batch.channel, s, once_batch.event_time,
                                            once_batch.payload_hash, NULL, false)
        FROM (SELECT u.recipient COLLATE "C" FROM unnest(keys) AS u (recipient)
              EXCEPT SELECT u.recipient COLLATE "C" FROM unnest(made.recipients) AS u (recipient) ORDER BY 1) k (recipient);
END
$$;
COMMENT ON FUNCTION ledger.once_batch(text, text, text[], text, timestamptz, text) IS
    'once for many recipients of one event, 10000 at most: one row for each distinct one. A lock not had within 2 s raises 55P03.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
