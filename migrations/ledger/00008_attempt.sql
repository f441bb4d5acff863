-- The calls of whoever holds a reservation, from claiming work that is due to the reservation's end. Each names its row
-- by id and fence, locks it, and reads the clock only then: the lock may have taken its time.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

CREATE OR REPLACE FUNCTION ledger.claim_due(worker text, channels text[], n integer, lease interval DEFAULT NULL)
RETURNS TABLE (id bigint, fence bigint, attempt integer, tenant text, event_key text, recipient text, channel text, provider_key text,
               lease_ms bigint, event_type text, payload bytea, headers jsonb, occurred_at timestamptz,
               takeover boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
    moment timestamptz;
    given bigint[] := '{}';
    taken boolean[] := '{}';
    met boolean;
    r record;
    done record;
    s ledger.channels;
    d ledger.notification_dispatches;
BEGIN
    PERFORM ledger.check_channels(claim_due.channels, claim_due.n);
    PERFORM ledger.check_worker(claim_due.worker);
    PERFORM ledger.check_lease(claim_due.lease, f) FROM unnest(claim_due.channels) AS u (c), ledger.settings(u.c) f;
    -- SKIP LOCKED waits after all where a row is changed twice while it is being locked, and whoever waits so with rows
    -- in hand may be waited for. Giving up after lock_timeout, well before deadlock_timeout, gives them back. No row is
    -- returned before the block has ended well.
    BEGIN
        -- Rows that were due but not to be claimed are no longer due, so another round meets others. Ten bound the time
        -- for which one call holds its locks.
        FOR round IN 1..10 LOOP
            met := false;
            moment := clock_timestamp(); -- in a variable: the index serves no condition on a volatile function
            FOR r IN
                SELECT d AS d, f AS s, p.predecessor
                FROM ledger.notification_dispatches d
                CROSS JOIN LATERAL ledger.settings(d.channel) f
                CROSS JOIN LATERAL (SELECT CASE WHEN f.after_channel IS NULL THEN 'delivered' ELSE ledger.predecessor(d.tenant, d.event_key, d.recipient, f.after_channel) END OFFSET 0) p (predecessor)
                WHERE d.due_at <= moment AND d.channel = ANY (claim_due.channels) AND (mine IS NULL OR d.tenant = ANY (mine))
                ORDER BY d.due_at
                LIMIT claim_due.n - cardinality(given)
                FOR NO KEY UPDATE OF d SKIP LOCKED
            LOOP
                met := true;
                s := r.s;
                SELECT t.* INTO done
                FROM ledger.take_step(r.d, ledger.next_step(r.d, s, r.predecessor, moment), moment, claim_due.worker,
                                      coalesce(claim_due.lease, s.lease), NULL) t;
                IF done.outcome = 'reserved' THEN
                    d := done.d;
                    given := given || d.id;
                    taken := taken || done.takeover;
                END IF;
            END LOOP;
            EXIT WHEN cardinality(given) >= claim_due.n OR NOT met;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    RETURN QUERY
        SELECT x.id, x.fence, x.attempts, x.tenant, x.event_key, x.recipient, x.channel,
               ledger.provider_key(x.tenant, x.event_key, x.recipient, x.channel, x.generation),
               ledger.milliseconds(x.lease_until - x.held_since), e.event_type, e.payload, e.headers, e.occurred_at, g.takeover
        FROM unnest(given, taken) WITH ORDINALITY AS g (id, takeover, i)
        CROSS JOIN LATERAL (SELECT t.* FROM ledger.notification_dispatches t WHERE t.id = g.id LIMIT 1) x
        LEFT JOIN LATERAL (SELECT v.* FROM ledger.events v WHERE v.tenant = x.tenant AND v.event_key = x.event_key LIMIT 1) e ON true
        ORDER BY g.i;
END
$$;
COMMENT ON FUNCTION ledger.claim_due(text, text[], integer, interval) IS
    'Reserves up to n deliveries of these channels that are due, or whose holder was not heard of in time, with what is remembered of their events. takeover: from such a holder. Fewer than n, even none, may be all that is free now.';

CREATE OR REPLACE FUNCTION ledger.begin_effect(id bigint, fence bigint, min_left interval DEFAULT '5 seconds') RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    d ledger.notification_dispatches;
    moment timestamptz;
BEGIN
    IF begin_effect.min_left IS NULL OR begin_effect.min_left NOT BETWEEN '0' AND '7 days' THEN
        PERFORM ledger.refuse('min_left', 'must be 0 to 7 days');
    END IF;
    d := ledger.locked_row(begin_effect.id, begin_effect.fence);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        RETURN 'gone';
    ELSIF d.state <> 'reserved' OR d.fence <> begin_effect.fence THEN
        RETURN 'fenced';
    ELSIF d.effect_at IS NOT NULL THEN
        RETURN 'already_begun';
    ELSIF d.lease_until <= moment OR d.lease_until - moment < begin_effect.min_left THEN
        RETURN 'lease_short';
    END IF;
    PERFORM ledger.commit_durably();
    UPDATE ledger.notification_dispatches AS t
    SET effect_at = moment, first_effect_at = coalesce(t.first_effect_at, moment)
    WHERE t.id = d.id;
    RETURN 'begun';
END
$$;
COMMENT ON FUNCTION ledger.begin_effect(bigint, bigint, interval) IS
    'States that the effect begins: begun, lease_short, already_begun, fenced or gone. It may begin only after the transaction of this call has committed. From then on a lost worker leaves the outcome uncertain.';

CREATE OR REPLACE FUNCTION ledger.renew(id bigint, fence bigint, lease interval DEFAULT NULL,
                                        OUT outcome text, OUT lease_until timestamptz, OUT lease_ms bigint)
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    d ledger.notification_dispatches;
    s ledger.channels;
    moment timestamptz;
    span interval;
    last timestamptz;
BEGIN
    d := ledger.locked_row(renew.id, renew.fence);
    SELECT f.* INTO s FROM ledger.settings(coalesce(d.channel, '*')) f;
    span := ledger.check_lease(renew.lease, s);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        outcome := 'gone';
        RETURN;
    ELSIF d.state <> 'reserved' OR d.fence <> renew.fence THEN
        outcome := 'fenced';
        RETURN;
    END IF;
    lease_until := d.lease_until;
    last := d.held_since + s.hold_cap;
    IF d.lease_until <= moment THEN
        outcome := 'lease_over';
    ELSIF d.lease_until >= last THEN
        outcome := 'hold_cap';
    ELSE
        outcome := 'renewed';
        lease_until := greatest(d.lease_until, least(moment + span, last)); -- a renewal shortens nothing
        UPDATE ledger.notification_dispatches AS t
        SET due_at = renew.lease_until, lease_until = renew.lease_until
        WHERE t.id = d.id;
    END IF;
    lease_ms := ledger.milliseconds(lease_until - moment);
END
$$;
COMMENT ON FUNCTION ledger.renew(bigint, bigint, interval) IS
    'Holds a reservation for longer: renewed with the new end, or lease_over, hold_cap, fenced, gone. The last renewal ends at hold_cap.';

-- complete on a row that is locked, after its arguments were found good.
CREATE OR REPLACE FUNCTION ledger.complete_row(d ledger.notification_dispatches, fence bigint, provider_ref text, result jsonb)
RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    guarded CONSTANT boolean := (SELECT f.mode FROM ledger.settings(d.channel) f) = 'guarded';
    late boolean := false;
BEGIN
    IF d.state = 'delivered' THEN
        RETURN 'already_delivered';
    ELSIF d.state = 'reserved' AND d.fence = complete_row.fence THEN
        IF guarded AND d.effect_at IS NULL THEN
            RETURN 'not_begun';
        END IF;
        PERFORM ledger.end_attempt(d, 'delivered', NULL, moment, complete_row.provider_ref);
    ELSIF d.gen_fence < complete_row.fence AND complete_row.fence <= d.fence AND d.state <> 'skipped'
          AND (d.state <> 'reserved' OR d.effect_at IS NULL) THEN
        -- It did happen, only later than agreed. The fence rises, so whoever holds the row now cannot begin.
        IF guarded AND d.first_effect_at IS NULL THEN
            RETURN 'not_begun';
        END IF;
        late := true;
        IF d.state IN ('reserved', 'uncertain') THEN
            PERFORM ledger.end_attempt(d, 'superseded', 'late_accepted', moment);
        END IF;
        UPDATE ledger.dispatch_attempts AS a
        SET outcome = 'late_accepted', provider_ref = coalesce(complete_row.provider_ref, a.provider_ref)
        WHERE a.dispatch_id = d.id AND a.fence = complete_row.fence;
    ELSE
        -- Nothing is to be done, but this may be a second delivery, and somebody may want to know.
        UPDATE ledger.dispatch_attempts AS a
        SET late_success_at = coalesce(a.late_success_at, moment), provider_ref = coalesce(complete_row.provider_ref, a.provider_ref)
        WHERE a.dispatch_id = d.id AND a.fence = complete_row.fence;
        RETURN 'fenced';
    END IF;
    UPDATE ledger.notification_dispatches AS t
    SET state = 'delivered', fence = t.fence + CASE WHEN late THEN 1 ELSE 0 END, due_at = NULL, lease_until = NULL,
        held_since = NULL, probe_until = NULL, blocked_since = NULL, done_at = moment, reason = NULL,
        provider_ref = complete_row.provider_ref, result = complete_row.result
    WHERE t.id = d.id;
    RETURN CASE WHEN late THEN 'late_accepted' ELSE 'delivered' END;
END
$$;
COMMENT ON FUNCTION ledger.complete_row(ledger.notification_dispatches, bigint, text, jsonb) IS
    'Completes a locked row. Internal.';

CREATE OR REPLACE FUNCTION ledger.complete(id bigint, fence bigint, provider_ref text DEFAULT NULL, result jsonb DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    d ledger.notification_dispatches;
BEGIN
    IF char_length(complete.provider_ref) > 1024 THEN
        PERFORM ledger.refuse('provider_ref', 'must have at most 1024 characters');
    ELSIF octet_length(complete.result::text) > 65536 THEN
        PERFORM ledger.refuse('result', 'must have at most 65536 bytes as text');
    END IF;
    d := ledger.locked_row(complete.id, complete.fence);
    IF d.id IS NULL THEN
        RETURN 'gone';
    END IF;
    PERFORM ledger.commit_durably();
    RETURN ledger.complete_row(d, complete.fence, complete.provider_ref, complete.result);
END
$$;
COMMENT ON FUNCTION ledger.complete(bigint, bigint, text, jsonb) IS
    'States that the effect happened: delivered, already_delivered, not_begun, late_accepted (the lease was over, and it still counts), fenced or gone. A row guarded by a channel in this database is written only on delivered or late_accepted.';

CREATE OR REPLACE FUNCTION ledger.complete_batch(ids bigint[], fences bigint[], refs text[])
RETURNS TABLE (id bigint, outcome text)
-- plan_cache_mode: to plan for the arrays given took longer than to complete a few rows. enable_*: but such a plan, made
-- while the table was small, must not read all of it later.
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off
AS $$
#variable_conflict use_column
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
    moment timestamptz;
    channels text[];
    guarded text[];
    simple bigint[]; -- places in ids
    next integer := 1;
    foreign_tenant boolean;
    r record;
    d ledger.notification_dispatches;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    ELSIF complete_batch.ids IS NULL OR cardinality(complete_batch.ids) > 10000 OR array_ndims(complete_batch.ids) > 1
          OR array_position(complete_batch.ids, NULL) IS NOT NULL THEN
        PERFORM ledger.refuse('ids', 'must be an array of one dimension and at most 10000 elements, none NULL');
    ELSIF cardinality(complete_batch.fences) IS DISTINCT FROM cardinality(complete_batch.ids) OR array_position(complete_batch.fences, NULL) IS NOT NULL THEN
        PERFORM ledger.refuse('fences', 'must have as many elements as ids, none NULL');
    ELSIF cardinality(complete_batch.refs) <> cardinality(complete_batch.ids) THEN
        PERFORM ledger.refuse('refs', 'must be NULL or have as many elements as ids');
    ELSIF EXISTS (SELECT FROM unnest(complete_batch.refs) AS u (ref) WHERE char_length(u.ref) > 1024) THEN
        PERFORM ledger.refuse('refs', 'each must have at most 1024 characters');
    END IF;
    PERFORM ledger.commit_durably();
    -- All locks first, in the order of the keys, which is everybody's.
    WITH locked AS MATERIALIZED (
        SELECT t.tenant, t.channel FROM ledger.notification_dispatches t WHERE t.id = ANY (complete_batch.ids)
        ORDER BY t.tenant, t.event_key, t.recipient, t.channel FOR NO KEY UPDATE
    )
    SELECT array_agg(DISTINCT l.channel), coalesce(bool_or(l.tenant <> ALL (mine)), false) AS foreign_tenant INTO channels, foreign_tenant FROM locked l;
    IF foreign_tenant THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    guarded := ARRAY(SELECT u.c FROM unnest(channels) AS u (c), ledger.settings(u.c) f WHERE f.mode = 'guarded');
    moment := clock_timestamp();
    -- Most are what they should be: still held by their caller, and begun. Those are one statement.
    WITH given AS (
        SELECT DISTINCT ON (u.id) u.id, u.fence, u.ref, u.i
        FROM unnest(complete_batch.ids, complete_batch.fences, complete_batch.refs) WITH ORDINALITY AS u (id, fence, ref, i)
        ORDER BY u.id, u.i
    ), plain AS MATERIALIZED (
        SELECT d.id, d.fence, d.held_since, d.effect_at, d.generation, d.attempts, d.worker, g.ref, g.i
        FROM given g
        JOIN ledger.notification_dispatches d ON d.id = g.id AND d.fence = g.fence AND d.state = 'reserved'
        WHERE d.effect_at IS NOT NULL OR d.channel <> ALL (guarded)
    ), ended AS (
        INSERT INTO ledger.dispatch_attempts (dispatch_id, fence, started_at, effect_at, ended_at, generation, attempt, outcome, worker, provider_ref)
        SELECT p.id, p.fence, p.held_since, p.effect_at, moment, p.generation, p.attempts, 'delivered', p.worker, p.ref FROM plain p
    ), done AS (
        UPDATE ledger.notification_dispatches AS t
        SET state = 'delivered', due_at = NULL, lease_until = NULL, held_since = NULL, done_at = moment, reason = NULL,
            provider_ref = p.ref, result = NULL
        FROM plain p WHERE t.id = p.id
        RETURNING p.i
    )
    SELECT array_agg(o.i ORDER BY o.i) INTO simple FROM done o;
    IF cardinality(simple) = cardinality(complete_batch.ids) THEN
        RETURN QUERY SELECT u.id, 'delivered' FROM unnest(complete_batch.ids) AS u (id);
        RETURN;
    END IF;
    FOR r IN
        SELECT u.* FROM unnest(complete_batch.ids, complete_batch.fences, complete_batch.refs) WITH ORDINALITY AS u (id, fence, ref, i) ORDER BY u.i
    LOOP
        id := r.id;
        IF simple[next] = r.i THEN
            outcome := 'delivered';
            next := next + 1;
        ELSE
            SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = r.id;
            outcome := CASE WHEN FOUND THEN ledger.complete_row(d, r.fence, r.ref, NULL) ELSE 'gone' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION ledger.complete_batch(bigint[], bigint[], text[]) IS
    'complete for up to 10000 rows, answered in the given order. refs may be NULL.';

CREATE OR REPLACE FUNCTION ledger.fail(id bigint, fence bigint, kind text, reason text, retry_after interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    why CONSTANT text := left(fail.reason, 1000); -- a failure is recorded, whatever its text
    d ledger.notification_dispatches;
    s ledger.channels;
    moment timestamptz;
    target text;
BEGIN
    IF fail.kind IS NULL OR fail.kind NOT IN ('retry', 'permanent', 'ambiguous') THEN
        PERFORM ledger.refuse('kind', 'must be retry, permanent or ambiguous');
    ELSIF fail.retry_after NOT BETWEEN '0' AND '365 days' THEN
        PERFORM ledger.refuse('retry_after', 'must be 0 to 365 days');
    END IF;
    d := ledger.locked_row(fail.id, fail.fence);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        RETURN 'gone';
    ELSIF d.fence <> fail.fence OR NOT (d.state = 'reserved' OR d.state = 'uncertain' AND fail.kind = 'retry') THEN
        RETURN 'fenced';
    END IF;
    SELECT f.* INTO s FROM ledger.settings(d.channel) f;
    target := CASE fail.kind
        WHEN 'permanent' THEN 'dead'
        WHEN 'retry' THEN CASE WHEN d.attempts < d.max_attempts THEN 'failed' ELSE 'dead' END
        ELSE CASE WHEN s.on_uncertain = 'resend' AND d.attempts < d.max_attempts
                       AND coalesce(d.first_effect_at, d.held_since) + s.provider_window > moment
                  THEN 'failed' ELSE 'uncertain' END END;
    PERFORM ledger.end_attempt(d, target, why, moment);
    UPDATE ledger.notification_dispatches AS t
    SET state = target, reason = why, lease_until = NULL, held_since = NULL,
        due_at = CASE target WHEN 'failed' THEN moment + coalesce(fail.retry_after, ledger.backoff(s.backoff_min, s.backoff_max, t.attempts)) END,
        effect_at = CASE target WHEN 'uncertain' THEN t.effect_at END,
        -- Without begin_effect the effect of an ambiguous failure cannot have begun before the reservation did.
        first_effect_at = CASE WHEN fail.kind = 'ambiguous' AND s.mode = 'simple' THEN coalesce(t.first_effect_at, t.held_since) ELSE t.first_effect_at END,
        probe_until = CASE target WHEN 'uncertain' THEN moment END,
        done_at = CASE target WHEN 'dead' THEN moment END
    WHERE t.id = d.id;
    RETURN target;
END
$$;
COMMENT ON FUNCTION ledger.fail(bigint, bigint, text, text, interval) IS
    'States that the attempt failed. retry: the effect did not happen, try again after the channel''s backoff or retry_after. permanent: no attempt will do better. ambiguous: it may have happened. Answers failed, dead, uncertain, fenced or gone.';

CREATE OR REPLACE FUNCTION ledger.skip(id bigint, fence bigint, reason text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    why CONSTANT text := left(skip.reason, 1000);
    d ledger.notification_dispatches;
    moment timestamptz;
BEGIN
    d := ledger.locked_row(skip.id, skip.fence);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        RETURN 'gone';
    ELSIF d.state <> 'reserved' OR d.fence <> skip.fence OR d.effect_at IS NOT NULL THEN
        RETURN 'fenced';
    END IF;
    PERFORM ledger.end_attempt(d, 'skipped', why, moment);
    UPDATE ledger.notification_dispatches AS t
    SET state = 'skipped', reason = why, due_at = NULL, lease_until = NULL, held_since = NULL, done_at = moment
    WHERE t.id = d.id;
    RETURN 'skipped';
END
$$;
COMMENT ON FUNCTION ledger.skip(bigint, bigint, text) IS
    'States that the delivery is no longer wanted: skipped, fenced or gone. Not after begin_effect.';

CREATE OR REPLACE FUNCTION ledger.release(id bigint, fence bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    d ledger.notification_dispatches;
    moment timestamptz;
BEGIN
    d := ledger.locked_row(release.id, release.fence);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        RETURN 'gone';
    ELSIF d.state <> 'reserved' OR d.fence <> release.fence OR d.effect_at IS NOT NULL THEN
        RETURN 'fenced';
    END IF;
    PERFORM ledger.end_attempt(d, 'released', NULL, moment);
    UPDATE ledger.notification_dispatches AS t
    SET state = 'pending', due_at = moment, lease_until = NULL, held_since = NULL, attempts = t.attempts - 1
    WHERE t.id = d.id;
    RETURN 'released';
END
$$;
COMMENT ON FUNCTION ledger.release(bigint, bigint) IS
    'Gives a reservation back untried, as at a shutdown: released, fenced or gone. The attempt does not count. Not after begin_effect.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
