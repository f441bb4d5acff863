-- The calls of probes and operators: open outcomes, second chances, housekeeping, questions.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

CREATE OR REPLACE FUNCTION ledger.claim_uncertain(worker text, channels text[], n integer, lease interval)
RETURNS TABLE (id bigint, fence bigint, tenant text, event_key text, recipient text, channel text, provider_key text,
               provider_ref text, first_effect_at timestamptz, lease_ms bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
    moment CONSTANT timestamptz := clock_timestamp();
    given bigint[] := '{}';
    r record;
    d ledger.notification_dispatches;
BEGIN
    PERFORM ledger.check_channels(claim_uncertain.channels, claim_uncertain.n);
    PERFORM ledger.check_worker(claim_uncertain.worker);
    PERFORM ledger.check_lease(claim_uncertain.lease, f) FROM unnest(claim_uncertain.channels) AS u (c), ledger.settings(u.c) f;
    BEGIN -- see claim_due
        FOR r IN
            SELECT d AS d, f.lease
            FROM ledger.notification_dispatches d CROSS JOIN LATERAL ledger.settings(d.channel) f
            WHERE d.probe_until <= moment AND d.channel = ANY (claim_uncertain.channels) AND (mine IS NULL OR d.tenant = ANY (mine))
            ORDER BY d.probe_until
            LIMIT claim_uncertain.n
            FOR NO KEY UPDATE OF d SKIP LOCKED
        LOOP
            d := r.d;
            PERFORM ledger.end_attempt(d, 'superseded', 'probe_over', moment); -- a probe that was not heard of in time
            UPDATE ledger.notification_dispatches AS t
            SET fence = t.fence + 1, worker = claim_uncertain.worker, held_since = moment,
                probe_until = moment + coalesce(claim_uncertain.lease, r.lease)
            WHERE t.id = d.id;
            given := given || d.id;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    RETURN QUERY
        SELECT x.id, x.fence, x.tenant, x.event_key, x.recipient, x.channel,
               ledger.provider_key(x.tenant, x.event_key, x.recipient, x.channel, x.generation),
               x.provider_ref, x.first_effect_at, ledger.milliseconds(x.probe_until - x.held_since)
        FROM unnest(given) WITH ORDINALITY AS g (id, i)
        CROSS JOIN LATERAL (SELECT t.* FROM ledger.notification_dispatches t WHERE t.id = g.id LIMIT 1) x
        ORDER BY g.i;
END
$$;
COMMENT ON FUNCTION ledger.claim_uncertain(text, text[], integer, interval) IS
    'Up to n uncertain deliveries of these channels for a probe, which asks the provider and answers with resolve before the lease is over. A NULL lease is the channel''s.';

CREATE OR REPLACE FUNCTION ledger.resolve(id bigint, fence bigint, verdict text, actor text, note text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    why CONSTANT text := left(resolve.note, 1000);
    d ledger.notification_dispatches;
    moment timestamptz;
BEGIN
    IF resolve.verdict IS NULL OR resolve.verdict NOT IN ('delivered', 'failed', 'dead') THEN
        PERFORM ledger.refuse('verdict', 'must be delivered, failed or dead');
    END IF;
    PERFORM ledger.check_actor(resolve.actor);
    d := ledger.locked_row(resolve.id, resolve.fence);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        RETURN 'gone';
    ELSIF d.state <> 'uncertain' OR d.fence <> resolve.fence THEN
        RETURN 'fenced';
    END IF;
    PERFORM ledger.commit_durably();
    PERFORM ledger.end_attempt(d, resolve.verdict, why, moment);
    PERFORM ledger.record(d, 'resolve', resolve.verdict, d.generation, resolve.actor, why, moment);
    UPDATE ledger.notification_dispatches AS t
    SET state = resolve.verdict, reason = why, held_since = NULL, probe_until = NULL,
        due_at = CASE resolve.verdict WHEN 'failed' THEN moment END,
        effect_at = CASE resolve.verdict WHEN 'delivered' THEN t.effect_at END,
        done_at = CASE resolve.verdict WHEN 'failed' THEN NULL ELSE moment END
    WHERE t.id = d.id;
    RETURN resolve.verdict;
END
$$;
COMMENT ON FUNCTION ledger.resolve(bigint, bigint, text, text, text) IS
    'Decides an uncertain delivery: delivered, failed (it did not happen, due again now) or dead, with who says so and why. The fence is that of claim_uncertain or of status. Else fenced or gone.';

CREATE OR REPLACE FUNCTION ledger.record(d ledger.notification_dispatches, action text, to_state text, generation integer,
                                         actor text, reason text, moment timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO ledger.audit (dispatch_id, fence, at, generation, action, from_state, to_state, role, actor, reason)
    VALUES (d.id, d.fence, moment, generation, action, d.state, to_state, session_user, actor, coalesce(reason, ''));
END
$$;
COMMENT ON FUNCTION ledger.record(ledger.notification_dispatches, text, text, integer, text, text, timestamptz) IS
    'Writes a decision from outside to ledger.audit. Internal.';

CREATE OR REPLACE FUNCTION ledger.redrive(id bigint, actor text, reason text, resend boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    d ledger.notification_dispatches;
    moment timestamptz;
BEGIN
    PERFORM ledger.check_actor(redrive.actor);
    IF redrive.reason IS NULL OR char_length(redrive.reason) NOT BETWEEN 1 AND 1000 THEN
        PERFORM ledger.refuse('reason', 'must have 1 to 1000 characters');
    ELSIF redrive.resend IS NULL THEN
        PERFORM ledger.refuse('resend', 'must not be NULL');
    END IF;
    d := ledger.locked_row(redrive.id, 0);
    moment := clock_timestamp();
    IF d.id IS NULL THEN
        RETURN 'gone';
    ELSIF NOT redrive.resend AND d.state NOT IN ('dead', 'skipped', 'uncertain')
          OR redrive.resend AND d.state NOT IN ('delivered', 'dead', 'uncertain') THEN
        RETURN 'refused';
    END IF;
    IF d.state = 'uncertain' THEN
        PERFORM ledger.end_attempt(d, 'superseded', 'redriven', moment); -- a probe that is still out
    END IF;
    PERFORM ledger.record(d, CASE WHEN redrive.resend THEN 'redrive_resend' ELSE 'redrive' END, 'pending',
                          d.generation + CASE WHEN redrive.resend THEN 1 ELSE 0 END, redrive.actor, redrive.reason, moment);
    UPDATE ledger.notification_dispatches AS t
    SET state = 'pending', due_at = moment, attempts = 0, effect_at = NULL, probe_until = NULL, held_since = NULL,
        done_at = NULL, reason = NULL, worker = NULL, result = NULL,
        generation = t.generation + CASE WHEN redrive.resend THEN 1 ELSE 0 END,
        gen_fence = CASE WHEN redrive.resend THEN t.fence ELSE t.gen_fence END,
        first_effect_at = CASE WHEN redrive.resend THEN NULL ELSE t.first_effect_at END,
        provider_ref = CASE WHEN redrive.resend THEN NULL ELSE t.provider_ref END
    WHERE t.id = d.id;
    RETURN 'redriven';
END
$$;
COMMENT ON FUNCTION ledger.redrive(bigint, text, text, boolean) IS
    'Has a dead, skipped or uncertain delivery tried again under the same provider key; with resend a delivered, dead or uncertain one made once more under a new key, so that it may arrive twice. Answers redriven, refused or gone.';

CREATE OR REPLACE FUNCTION ledger.sweep(n integer, OUT to_uncertain integer, OUT to_dead integer, OUT to_skipped integer) RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
    moment CONSTANT timestamptz := clock_timestamp();
    r record;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    END IF;
    PERFORM ledger.check_n(sweep.n);
    to_uncertain := 0;
    to_dead := 0;
    to_skipped := 0;
    BEGIN -- see claim_due
        FOR r IN
            SELECT d AS d, ledger.next_step(d, f, p.predecessor, moment) AS step
            FROM ledger.notification_dispatches d
            CROSS JOIN LATERAL ledger.settings(d.channel) f
            CROSS JOIN LATERAL (SELECT CASE WHEN f.after_channel IS NULL THEN 'delivered' ELSE ledger.predecessor(d.tenant, d.event_key, d.recipient, f.after_channel) END OFFSET 0) p (predecessor)
            WHERE d.due_at <= moment AND (mine IS NULL OR d.tenant = ANY (mine))
              AND ledger.next_step(d, f, p.predecessor, moment) IN ('park', 'exhaust', 'after_skipped', 'after_dead')
            ORDER BY d.due_at
            LIMIT sweep.n
            FOR NO KEY UPDATE OF d SKIP LOCKED
        LOOP
            PERFORM ledger.take_step(r.d, r.step, moment, NULL, NULL, NULL);
            CASE r.step
            WHEN 'park' THEN to_uncertain := to_uncertain + 1;
            WHEN 'exhaust' THEN to_dead := to_dead + 1;
            ELSE to_skipped := to_skipped + 1;
            END CASE;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        to_uncertain := 0;
        to_dead := 0;
        to_skipped := 0;
    END;
END
$$;
COMMENT ON FUNCTION ledger.sweep(integer) IS
    'Settles up to n due rows that no reservation will: effects with an open outcome, exhausted rows, rows whose predecessor was skipped or is dead. Run it every minute where rows wait for workers that may be gone.';

CREATE OR REPLACE FUNCTION ledger.purge(n integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
    moment CONSTANT timestamptz := clock_timestamp();
    keep CONSTANT interval := (SELECT nullif(c.retention, '0') FROM ledger.channels c WHERE c.channel = '*');
    gone record;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    END IF;
    PERFORM ledger.check_n(purge.n);
    -- = ANY (ARRAY(...)), not IN (...): the list is made once, whatever the plan.
    -- Ids rise with time, so what is old enough is met first. Rows of channels that keep theirs for longer are
    -- stepped over.
    WITH old AS (
        DELETE FROM ledger.notification_dispatches t
        WHERE t.id = ANY (ARRAY(
            SELECT d.id FROM ledger.notification_dispatches d CROSS JOIN LATERAL ledger.settings(d.channel) f
            WHERE d.state IN ('delivered', 'skipped', 'dead') AND f.retention > '0' AND d.done_at < moment - f.retention
              AND (mine IS NULL OR d.tenant = ANY (mine))
            ORDER BY d.id LIMIT purge.n FOR UPDATE OF d SKIP LOCKED))
        RETURNING t.id, t.tenant, t.event_key
    )
    SELECT array_agg(o.id) AS ids, array_agg(o.tenant) AS tenants, array_agg(o.event_key) AS event_keys INTO gone FROM old o;
    DELETE FROM ledger.dispatch_attempts a WHERE a.dispatch_id = ANY (gone.ids);
    DELETE FROM ledger.audit a WHERE a.dispatch_id = ANY (gone.ids);
    -- An event goes with the last of its rows; one whose rows were all refused as expired, by its age.
    DELETE FROM ledger.events e
    WHERE e.ctid = ANY (ARRAY(
        SELECT o.ctid FROM (
            SELECT DISTINCT * FROM unnest(gone.tenants, gone.event_keys)
            UNION
            (SELECT y.tenant, y.event_key FROM ledger.events y
             WHERE y.remembered_at < moment - keep AND (mine IS NULL OR y.tenant = ANY (mine))
               AND NOT EXISTS (SELECT FROM ledger.notification_dispatches d WHERE d.tenant = y.tenant AND d.event_key = y.event_key)
             ORDER BY y.remembered_at LIMIT purge.n)) k (tenant, event_key)
        JOIN ledger.events o ON o.tenant = k.tenant AND o.event_key = k.event_key
        WHERE NOT EXISTS (SELECT FROM ledger.notification_dispatches d WHERE d.tenant = o.tenant AND d.event_key = o.event_key)
        FOR UPDATE OF o SKIP LOCKED));
    IF mine IS NULL THEN -- attempts of rows that live on
        DELETE FROM ledger.dispatch_attempts a
        WHERE a.ctid = ANY (ARRAY(
            SELECT o.ctid FROM ledger.dispatch_attempts o WHERE o.ended_at < moment - keep
            ORDER BY o.ended_at LIMIT purge.n FOR UPDATE SKIP LOCKED));
    END IF;
    RETURN coalesce(cardinality(gone.ids), 0);
EXCEPTION WHEN lock_not_available THEN -- see claim_due
    RETURN 0;
END
$$;
COMMENT ON FUNCTION ledger.purge(integer) IS
    'Deletes up to n rows whose end is longer ago than their channel''s retention, with their attempts, and events without rows. Returns the number of rows; call it again while it returns n.';

CREATE OR REPLACE FUNCTION ledger.status(tenant text, event_key text)
RETURNS TABLE (id bigint, fence bigint, recipient text, channel text, state text, attempts integer, reason text, done_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    broken CONSTANT text[] := ledger.broken_rule(status.tenant, status.event_key, '', '-', NULL, NULL);
BEGIN
    IF broken IS NOT NULL THEN
        PERFORM ledger.refuse(broken[1], broken[2]);
    ELSIF status.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    RETURN QUERY
        SELECT d.id, d.fence, d.recipient, d.channel, d.state, d.attempts, d.reason, d.done_at
        FROM ledger.notification_dispatches d WHERE d.tenant = status.tenant AND d.event_key = status.event_key
        ORDER BY d.recipient, d.channel;
END
$$;
COMMENT ON FUNCTION ledger.status(text, text) IS
    'All deliveries of one business event, by recipient and channel.';

CREATE OR REPLACE FUNCTION ledger.stats() RETURNS TABLE (channel text, state text, n bigint, oldest timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
BEGIN
    RETURN QUERY
        SELECT d.channel, d.state, count(*), min(CASE d.state WHEN 'reserved' THEN d.held_since
                                                             WHEN 'uncertain' THEN coalesce(d.first_effect_at, d.created_at)
                                                             ELSE coalesce(d.due_at, d.done_at) END)
        FROM ledger.notification_dispatches d
        WHERE mine IS NULL OR d.tenant = ANY (mine)
        GROUP BY d.channel, d.state ORDER BY d.channel, d.state;
END
$$;
COMMENT ON FUNCTION ledger.stats() IS
    'Rows by channel and state, with the earliest due_at (pending, failed), begin of the hold (reserved) or of the effect (uncertain), or end (delivered, skipped, dead). Reads the whole table: ask for it once a minute, not once a request.';

CREATE OR REPLACE FUNCTION ledger.generation(tenant text, event_key text, recipient text, channel text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF generation.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    RETURN (SELECT d.generation FROM ledger.notification_dispatches d
            WHERE d.tenant = generation.tenant AND d.event_key = generation.event_key AND d.recipient = generation.recipient
              AND d.channel = generation.channel);
END
$$;
COMMENT ON FUNCTION ledger.generation(text, text, text, text) IS
    'Generation of a delivery, for ledger.notifications.generation where operators may have deliveries made once more. NULL: there is no such row.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
