-- A delivery is made in the caller's own transaction: exactly once, if its effect is a row of this database.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

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
    SET plan_cache_mode = force_generic_plan
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
    IF cardinality(made.recipients) = cardinality(keys) THEN
        RETURN;
    END IF;
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
