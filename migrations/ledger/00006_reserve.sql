-- A delivery is reserved: whoever is answered reserved, and nobody else, may attempt it until the lease ends.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

-- reserve in all cases, after the arguments were found good. No outcome: the row has come or gone meanwhile, look again.
CREATE OR REPLACE FUNCTION ledger.reserve_row(tenant text, event_key text, recipient text, channel text, worker text,
                                              event_time timestamptz, lease interval, payload_hash text, OUT outcome text, OUT id bigint, OUT fence bigint, OUT attempt integer,
                                              OUT lease_until timestamptz, OUT lease_ms bigint, OUT provider_key text,
                                              OUT retry_after_ms bigint, OUT result jsonb, OUT takeover boolean)
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
            takeover := r.takeover;
        END IF;
    END IF;
    id := d.id;
    IF outcome = 'reserved' THEN
        takeover := coalesce(takeover, false);
        fence := d.fence;
        attempt := d.attempts;
        lease_until := d.lease_until;
        lease_ms := ledger.milliseconds(d.lease_until - moment);
        provider_key := ledger.provider_key(d.tenant, d.event_key, d.recipient, d.channel, d.generation);
        RETURN;
    END IF;
    takeover := NULL;
    IF outcome <> 'payload_mismatch' THEN
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
    OUT result         jsonb,
    OUT takeover       boolean
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
                RETURNING 'reserved', t.id, 1::bigint, 1, t.lease_until, ledger.milliseconds(t.lease_until - t.held_since),
                          ledger.provider_key(t.tenant, t.event_key, t.recipient, t.channel, 1), false
                INTO outcome, id, fence, attempt, lease_until, lease_ms, provider_key, takeover;
            ELSE
                SELECT b.* INTO outcome, id, fence, attempt, lease_until, lease_ms, provider_key, retry_after_ms, result, takeover
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
    'Reserves one delivery. Outcome reserved: it is the caller''s until lease_until, under id and fence; takeover: from a holder that let its lease end. Else already_delivered (with its result), already_reserved, already_skipped, blocked, not_due, uncertain, dead, expired, payload_mismatch, busy.';

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
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s CONSTANT ledger.channels := ledger.check_creation(reserve_batch.tenant, reserve_batch.event_key, '', reserve_batch.channel, reserve_batch.event_time, reserve_batch.payload_hash);
    span CONSTANT interval := ledger.check_lease(reserve_batch.lease, s);
    keys text[] := ledger.check_recipients(reserve_batch.recipients);
    moment timestamptz := clock_timestamp();
    fresh text[];
    expired boolean;
    made record;
    r record;
    d ledger.notification_dispatches;
BEGIN
    PERFORM ledger.check_worker(reserve_batch.worker);
    expired := s.horizon > '0' AND coalesce(reserve_batch.event_time < moment - s.horizon, false);
    IF NOT expired THEN
        fresh := ledger.without_rows(reserve_batch.tenant, reserve_batch.event_key, keys, reserve_batch.channel);
    END IF;
    IF cardinality(fresh) > 0 THEN
        SELECT a.*, ledger.milliseconds(moment + span - moment) AS lease_ms INTO made
        FROM ledger.add_rows(reserve_batch.tenant, reserve_batch.event_key, fresh, reserve_batch.channel, 'reserved', s, moment,
                             moment + span, reserve_batch.worker, reserve_batch.payload_hash, NULL) a;
        IF s.after_channel IS NULL THEN
            RETURN QUERY
                SELECT m.recipient, 'reserved', m.id, 1::bigint, 1, made.lease_ms,
                       ledger.provider_key(reserve_batch.tenant, reserve_batch.event_key, m.recipient, reserve_batch.channel, 1)
                FROM unnest(made.ids, made.recipients) AS m (id, recipient);
        ELSE
            RETURN QUERY
                SELECT m.recipient, o.outcome, m.id, o.one::bigint, o.one, o.one * made.lease_ms,
                       CASE o.one WHEN 1 THEN ledger.provider_key(reserve_batch.tenant, reserve_batch.event_key, m.recipient, reserve_batch.channel, 1) END
                FROM unnest(made.ids, made.recipients, made.states) AS m (id, recipient, state)
                JOIN (VALUES ('reserved', 'reserved', 1), ('pending', 'blocked', NULL), ('skipped', 'already_skipped', NULL)) AS o (state, outcome, one) USING (state);
        END IF;
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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
