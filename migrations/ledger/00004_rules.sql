-- The one place that decides what a row's next step is, and carries it out. Nothing here is granted to anybody.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

-- Functions in SQL that touch only their arguments are STABLE, not IMMUTABLE, wherever they add an interval to a time:
-- with a wrong label the planner would call them instead of inlining them.
-- Bodies in BEGIN ATOMIC are bound to what they call when they are created, and the planner may inline them: they
-- cost the calling query next to nothing. What reads or writes a table is not inlined and would be planned at each call:
-- it is PL/pgSQL, which keeps its plans.

CREATE OR REPLACE FUNCTION ledger.milliseconds(span interval) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE WHEN span > '0' THEN floor(extract(epoch FROM span) * 1000)::bigint WHEN span IS NOT NULL THEN 0 END;
END;
COMMENT ON FUNCTION ledger.milliseconds(interval) IS
    'Whole milliseconds of a span, rounded down; 0 if it is negative. For leases: what is promised is there.';

CREATE OR REPLACE FUNCTION ledger.retry_after(due_at timestamptz, moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT ledger.milliseconds(due_at - moment) + 1;
END;
COMMENT ON FUNCTION ledger.retry_after(timestamptz, timestamptz) IS
    'Milliseconds until it is due, rounded up: whoever comes back then does not come too early. NULL: it never is.';

CREATE OR REPLACE FUNCTION ledger.backoff(shortest interval, longest interval, attempts integer) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT least(longest, shortest * power(2, least(greatest(attempts, 1) - 1, 30)));
END;
COMMENT ON FUNCTION ledger.backoff(interval, interval, integer) IS
    'Wait after that many attempts: the shortest, doubled with each further attempt, up to the longest.';

-- Queries look rows up by subqueries like this one and by LATERAL with LIMIT, not by joins: one event may have a row for
-- each of a million recipients, the planner expects one, and would rather read them all than look up the few it needs.
-- A function with a subquery is not inlined, so callers with many rows ask for after_channel first.
CREATE OR REPLACE FUNCTION ledger.predecessor(of_tenant text, of_event_key text, of_recipient text, of_channel text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF of_channel IS NULL THEN
        RETURN 'delivered';
    END IF;
    RETURN coalesce((
        SELECT a.state FROM ledger.notification_dispatches a
        WHERE a.tenant = of_tenant AND a.event_key = of_event_key AND a.recipient = of_recipient AND a.channel = of_channel), 'absent');
END
$$;
COMMENT ON FUNCTION ledger.predecessor(text, text, text, text) IS
    'State of the row of after_channel, or absent; delivered if there is no such channel. Internal.';

-- What a predecessor that has not delivered makes of a row that waits for it; NULL if it has.
CREATE OR REPLACE FUNCTION ledger.predecessor_step(predecessor text, created_at timestamptz, horizon interval, moment timestamptz)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE predecessor
        WHEN 'delivered' THEN NULL
        WHEN 'skipped' THEN 'after_skipped'
        WHEN 'dead' THEN 'after_dead'
        ELSE CASE WHEN horizon > '0' AND created_at + horizon <= moment THEN 'after_missing' ELSE 'block' END END;
END;
COMMENT ON FUNCTION ledger.predecessor_step(text, timestamptz, interval, timestamptz) IS
    'Step of a row whose predecessor is in this state, or absent; NULL if the predecessor has delivered.';

CREATE OR REPLACE FUNCTION ledger.settled_answer(state text, due_at timestamptz, moment timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE state
        WHEN 'delivered' THEN 'already_delivered'
        WHEN 'skipped' THEN 'already_skipped'
        WHEN 'dead' THEN 'dead'
        WHEN 'uncertain' THEN 'uncertain'
        WHEN 'reserved' THEN CASE WHEN due_at > moment THEN 'already_reserved' END END;
END;
COMMENT ON FUNCTION ledger.settled_answer(text, timestamptz, timestamptz) IS
    'Answer to somebody who wants to deliver a row in this state, if nothing can change it; else NULL.';

-- What is to be done with a row that exists, when somebody wants to deliver. Answers that callers know from reserve
-- change nothing; the other steps are those of ledger.take_step: take, park, exhaust, block, after_missing,
-- after_skipped, after_dead. predecessor is the state of the row of after_channel, absent, or delivered if there is
-- no such channel.
CREATE OR REPLACE FUNCTION ledger.next_step(d ledger.notification_dispatches, s ledger.channels, predecessor text, moment timestamptz)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE
        WHEN ledger.settled_answer((d).state, (d).due_at, moment) IS NOT NULL THEN ledger.settled_answer((d).state, (d).due_at, moment)
        -- An effect that may have happened comes before all else, exhaustion included.
        WHEN (d).effect_at IS NOT NULL THEN
            CASE WHEN (s).on_uncertain = 'resend' AND (d).first_effect_at + (s).provider_window > moment
                      AND (d).attempts < (d).max_attempts AND predecessor = 'delivered'
                 THEN 'take' ELSE 'park' END
        WHEN (d).attempts >= (d).max_attempts THEN 'exhaust'
        ELSE coalesce(ledger.predecessor_step(predecessor, (d).created_at, (s).horizon, moment),
                      CASE WHEN (d).due_at > moment THEN 'not_due' ELSE 'take' END)
        END;
END;
COMMENT ON FUNCTION ledger.next_step(ledger.notification_dispatches, ledger.channels, text, timestamptz) IS
    'The one decision of the ledger: what happens to a row that somebody wants to deliver now. Changes nothing.';

-- The same for once, which takes no lease: it minds neither due_at nor attempts, and a row whose effect may be
-- repeated is for those who reserve.
CREATE OR REPLACE FUNCTION ledger.once_step(d ledger.notification_dispatches, s ledger.channels, predecessor text, moment timestamptz)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE
        WHEN (d).state IN ('pending', 'failed') OR (d).state = 'reserved' AND (d).due_at <= moment AND (d).effect_at IS NULL
            THEN coalesce(ledger.predecessor_step(predecessor, (d).created_at, (s).horizon, moment), 'deliver')
        ELSE replace(ledger.next_step(d, s, predecessor, moment), 'take', 'already_reserved') END;
END;
COMMENT ON FUNCTION ledger.once_step(ledger.notification_dispatches, ledger.channels, text, timestamptz) IS
    'What happens to a row that somebody wants to deliver in his own transaction, without a reservation: deliver, or as next_step.';

-- Ends a fence: one row an attempt. What superseded finds ended already is left as it ended.
CREATE OR REPLACE FUNCTION ledger.end_attempt(d ledger.notification_dispatches, outcome text, reason text, moment timestamptz,
                                              provider_ref text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO ledger.dispatch_attempts AS a (dispatch_id, fence, started_at, effect_at, ended_at, generation, attempt,
                                               outcome, worker, reason, provider_ref)
    VALUES (end_attempt.d.id, end_attempt.d.fence, end_attempt.d.held_since, end_attempt.d.effect_at, moment,
            end_attempt.d.generation, end_attempt.d.attempts, end_attempt.outcome, end_attempt.d.worker, end_attempt.reason,
            end_attempt.provider_ref)
    ON CONFLICT (dispatch_id, fence) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, ended_at = excluded.ended_at,
        provider_ref = coalesce(excluded.provider_ref, a.provider_ref)
    WHERE excluded.outcome <> 'superseded';
END
$$;
COMMENT ON FUNCTION ledger.end_attempt(ledger.notification_dispatches, text, text, timestamptz, text) IS
    'Records the end of a row''s newest fence. Internal.';

-- Carries a step of ledger.next_step out on a row that the caller has locked, and returns the outcome.
CREATE OR REPLACE FUNCTION ledger.take_step(INOUT d ledger.notification_dispatches, step text, moment timestamptz,
                                            worker text, lease interval, payload_hash text, OUT outcome text, OUT takeover boolean)
RETURNS record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    wait interval;
BEGIN
    takeover := d.state = 'reserved' AND step = 'take';
    IF d.state = 'reserved' AND step IN ('take', 'park', 'exhaust', 'block', 'after_missing', 'after_skipped', 'after_dead') THEN
        PERFORM ledger.end_attempt(d, CASE step WHEN 'park' THEN 'uncertain' ELSE 'lease_over' END, NULL, moment);
    END IF;
    CASE step
    WHEN 'take' THEN
        outcome := 'reserved';
        UPDATE ledger.notification_dispatches AS t
        SET state = 'reserved', fence = t.fence + 1, attempts = t.attempts + 1, worker = take_step.worker,
            due_at = moment + take_step.lease, lease_until = moment + take_step.lease, held_since = moment,
            effect_at = NULL, blocked_since = NULL, reason = NULL,
            payload_hash = coalesce(t.payload_hash, take_step.payload_hash)
        WHERE t.id = d.id RETURNING t.* INTO d;
    WHEN 'park' THEN
        outcome := 'uncertain';
        UPDATE ledger.notification_dispatches AS t
        SET state = 'uncertain', due_at = NULL, lease_until = NULL, held_since = NULL, probe_until = moment,
            reason = 'lease_over'
        WHERE t.id = d.id RETURNING t.* INTO d;
    WHEN 'exhaust', 'after_missing' THEN
        outcome := 'dead';
        UPDATE ledger.notification_dispatches AS t
        SET state = 'dead', due_at = NULL, lease_until = NULL, held_since = NULL, blocked_since = NULL, done_at = moment,
            reason = CASE step WHEN 'exhaust' THEN coalesce(t.reason, 'attempts_exhausted') ELSE step END
        WHERE t.id = d.id RETURNING t.* INTO d;
    WHEN 'after_skipped', 'after_dead' THEN
        outcome := 'already_skipped';
        UPDATE ledger.notification_dispatches AS t
        SET state = 'skipped', due_at = NULL, lease_until = NULL, held_since = NULL, blocked_since = NULL,
            done_at = moment, reason = step
        WHERE t.id = d.id RETURNING t.* INTO d;
    WHEN 'block' THEN
        outcome := 'blocked';
        -- A second longer than it has waited, so the wait doubles; nothing is written while it already waits.
        IF d.state = 'pending' AND d.due_at > moment AND d.blocked_since IS NOT NULL THEN
            RETURN;
        END IF;
        wait := least(interval '1 minute', interval '1 second' + coalesce(moment - d.blocked_since, interval '0'));
        UPDATE ledger.notification_dispatches AS t
        SET state = 'pending', due_at = greatest(moment + wait, t.due_at), lease_until = NULL, held_since = NULL,
            blocked_since = coalesce(t.blocked_since, moment)
        WHERE t.id = d.id RETURNING t.* INTO d;
    ELSE
        outcome := step;
    END CASE;
END
$$;
COMMENT ON FUNCTION ledger.take_step(ledger.notification_dispatches, text, timestamptz, text, interval, text) IS
    'Carries one step of ledger.next_step out on a locked row and says what it is to be answered. Internal.';

-- The row of a call that names one by id and fence, locked. NULL: there is none.
CREATE OR REPLACE FUNCTION ledger.locked_row(id bigint, fence bigint) RETURNS ledger.notification_dispatches
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    mine CONSTANT text[] := ledger.own_tenants();
    d ledger.notification_dispatches;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    END IF;
    IF id IS NULL OR fence IS NULL THEN
        PERFORM ledger.refuse(CASE WHEN id IS NULL THEN 'id' ELSE 'fence' END, 'must not be NULL');
    END IF;
    SELECT t.* INTO d FROM ledger.notification_dispatches t WHERE t.id = locked_row.id FOR NO KEY UPDATE;
    IF d.tenant <> ALL (mine) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    RETURN d;
END
$$;
COMMENT ON FUNCTION ledger.locked_row(bigint, bigint) IS
    'Locks and returns the row of a call that names one; raises for NULLs and for another tenant''s row. Internal.';

-- begin_effect, once and complete must outlive a crash of the server: a caller that turned it off waits here.
CREATE OR REPLACE FUNCTION ledger.commit_durably() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
COMMENT ON FUNCTION ledger.commit_durably() IS
    'Turns synchronous_commit on for the rest of the transaction, unless it already is at least that. Internal.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
