-- What the ledger's calls share: settings, tenants, refusals, and the one place that decides what a row's next step
-- is. Nothing here is granted to anybody but what roles/ledger.sql names.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

-- Functions in SQL that touch only their arguments are STABLE, not IMMUTABLE, wherever they add an interval to a time:
-- with a wrong label the planner would call them instead of inlining them.
-- Bodies in BEGIN ATOMIC are bound to what they call when they are created, and the planner may inline them: they
-- cost the calling query next to nothing.

CREATE OR REPLACE FUNCTION ledger.settings(of_channel text) RETURNS SETOF ledger.channels
LANGUAGE sql STABLE
BEGIN ATOMIC
    -- channel is NULL where the channel is unknown. The defaults stand there too: rows outlive their channel's row.
    SELECT CASE WHEN of_channel <> '*' AND (c.channel IS NOT NULL OR of_channel LIKE 'listener:_%') THEN of_channel END COLLATE "C",
           coalesce(c.mode, d.mode), coalesce(c.on_uncertain, d.on_uncertain),
           coalesce(c.provider_window, d.provider_window), c.after_channel, coalesce(c.max_attempts, d.max_attempts),
           coalesce(c.lease, d.lease), coalesce(c.hold_cap, d.hold_cap), coalesce(c.backoff_min, d.backoff_min),
           coalesce(c.backoff_max, d.backoff_max), coalesce(c.retention, d.retention), coalesce(c.horizon, d.horizon)
    FROM ledger.channels d LEFT JOIN ledger.channels c ON c.channel = of_channel
    WHERE d.channel = '*';
END;
COMMENT ON FUNCTION ledger.settings(text) IS
    'Settings in force for a channel, the defaults filled in. Column channel is NULL if the channel is unknown.';

-- Tenant, key, recipient and channel cannot hold a zero byte, so it separates them without doubt.
CREATE OR REPLACE FUNCTION ledger.provider_key(tenant text, event_key text, recipient text, channel text, generation integer)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT encode(sha256(convert_to(tenant, 'UTF8') || '\x00'::bytea || convert_to(event_key, 'UTF8') || '\x00'::bytea ||
                         convert_to(recipient, 'UTF8') || '\x00'::bytea || convert_to(channel, 'UTF8') || '\x00'::bytea ||
                         convert_to(generation::text, 'UTF8')), 'hex');
END;
COMMENT ON FUNCTION ledger.provider_key(text, text, text, text, integer) IS
    'Key for the provider''s own deduplication, the same for all attempts of a generation: 64 lower-case hex digits of SHA-256 over tenant, event key, recipient, channel and generation (plain decimal) in UTF-8, joined by one zero byte each.';

CREATE OR REPLACE FUNCTION ledger.own_tenants() RETURNS text[]
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT array_agg(rt.tenant) FROM ledger.role_tenants rt WHERE rt.role = session_user $$;
COMMENT ON FUNCTION ledger.own_tenants() IS
    'Tenants that the login role is limited to; NULL: it is not limited.';

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
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE WHEN of_channel IS NULL THEN 'delivered' ELSE coalesce((
        SELECT a.state FROM ledger.notification_dispatches a
        WHERE a.tenant = of_tenant AND a.event_key = of_event_key AND a.recipient = of_recipient AND a.channel = of_channel), 'absent') END;
END;
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
RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO ledger.dispatch_attempts AS a (dispatch_id, fence, started_at, effect_at, ended_at, generation, attempt,
                                               outcome, worker, reason, provider_ref)
    VALUES ((d).id, (d).fence, (d).held_since, (d).effect_at, moment, (d).generation, (d).attempts, outcome, (d).worker,
            reason, provider_ref)
    ON CONFLICT (dispatch_id, fence) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, ended_at = excluded.ended_at,
        provider_ref = coalesce(excluded.provider_ref, a.provider_ref)
    WHERE excluded.outcome <> 'superseded';
END;
COMMENT ON FUNCTION ledger.end_attempt(ledger.notification_dispatches, text, text, timestamptz, text) IS
    'Records the end of a row''s newest fence. Internal.';

-- Carries a step of ledger.next_step out on a row that the caller has locked, and returns the outcome.
CREATE OR REPLACE FUNCTION ledger.take_step(INOUT d ledger.notification_dispatches, step text, moment timestamptz,
                                            worker text, lease interval, payload_hash text, OUT outcome text)
RETURNS record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    wait interval;
BEGIN
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

-- Refusals. They name the argument and its limit and never its value: messages end in logs.

CREATE OR REPLACE FUNCTION ledger.refuse(argument text, rule text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '%: %', argument, rule USING ERRCODE = 'invalid_parameter_value', COLUMN = argument;
END
$$;
COMMENT ON FUNCTION ledger.refuse(text, text) IS
    'Raises 22023 for an argument, with the rule it breaks. Internal.';

CREATE OR REPLACE FUNCTION ledger.refuse_isolation() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the ledger works in READ COMMITTED only, this transaction is %', upper(current_setting('transaction_isolation'))
        USING ERRCODE = 'invalid_transaction_state',
              HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED: a snapshot taken before a concurrent delivery would hide it.';
END
$$;
COMMENT ON FUNCTION ledger.refuse_isolation() IS
    'Raises 25000 for a transaction whose snapshot is older than its statement. Internal.';

CREATE OR REPLACE FUNCTION ledger.refuse_tenant() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'role "%" is limited to other tenants', session_user
        USING ERRCODE = 'insufficient_privilege', HINT = 'ledger.role_tenants lists the tenants of a role.';
END
$$;
COMMENT ON FUNCTION ledger.refuse_tenant() IS
    'Raises 42501 for a tenant that the login role is not listed for. Internal.';

-- The rule that a creating call's arguments break, as argument and rule; NULL if none.
CREATE OR REPLACE FUNCTION ledger.broken_rule(tenant text, event_key text, recipient text, channel text, event_time timestamptz, payload_hash text)
RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE
        WHEN tenant IS NULL OR char_length(tenant) > 64 THEN ARRAY['tenant', 'must not be NULL and have at most 64 characters']
        WHEN event_key IS NULL OR char_length(event_key) NOT BETWEEN 1 AND 255 THEN ARRAY['event_key', 'must have 1 to 255 characters']
        WHEN recipient IS NULL OR char_length(recipient) > 255 THEN ARRAY['recipient', 'must not be NULL and have at most 255 characters']
        WHEN channel IS NULL OR char_length(channel) NOT BETWEEN 1 AND 64 THEN ARRAY['channel', 'must have 1 to 64 characters']
        WHEN NOT isfinite(event_time) THEN ARRAY['event_time', 'must be finite']
        WHEN payload_hash !~ '^sha256:[0-9a-f]{64}$' THEN ARRAY['payload_hash', 'must be sha256: and 64 lower-case hex digits']
    END;
END;
COMMENT ON FUNCTION ledger.broken_rule(text, text, text, text, timestamptz, text) IS
    'First rule that the arguments of a creating call break, as argument and rule; NULL: none. Internal.';

-- Raises what is wrong with a call that wants to create rows; the rest of its work is done by the call's own query.
CREATE OR REPLACE FUNCTION ledger.check_creation(tenant text, event_key text, recipient text, channel text, event_time timestamptz, payload_hash text)
RETURNS ledger.channels LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    broken CONSTANT text[] := ledger.broken_rule(tenant, event_key, recipient, channel, event_time, payload_hash);
    mine CONSTANT text[] := ledger.own_tenants();
    s ledger.channels;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    END IF;
    IF broken IS NOT NULL THEN
        PERFORM ledger.refuse(broken[1], broken[2]);
    END IF;
    IF mine IS NOT NULL AND tenant <> ALL (mine) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    SELECT f.* INTO s FROM ledger.settings(channel) f;
    IF s.channel IS NULL THEN
        PERFORM ledger.refuse('channel', 'has no row in ledger.channels and does not begin with listener:');
    END IF;
    IF event_time IS NULL AND s.retention > '0' THEN
        PERFORM ledger.refuse('event_time', 'must not be NULL where the channel''s retention is finite');
    END IF;
    RETURN s;
END
$$;
COMMENT ON FUNCTION ledger.check_creation(text, text, text, text, timestamptz, text) IS
    'Raises what is wrong with the arguments of a creating call, else returns the channel''s settings. Internal.';

CREATE OR REPLACE FUNCTION ledger.check_lease(lease interval, s ledger.channels) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    IF lease <= '0' OR lease > s.hold_cap THEN
        PERFORM ledger.refuse('lease', format('must be more than 0 and at most the channel''s hold_cap, %s', s.hold_cap));
    END IF;
    RETURN coalesce(lease, least(s.lease, s.hold_cap));
END
$$;
COMMENT ON FUNCTION ledger.check_lease(interval, ledger.channels) IS
    'Raises 22023 for a lease outside its limits, else returns the one in force. Internal.';

CREATE OR REPLACE FUNCTION ledger.check_worker(worker text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF worker IS NULL OR char_length(worker) NOT BETWEEN 1 AND 255 THEN
        PERFORM ledger.refuse('worker', 'must have 1 to 255 characters');
    END IF;
END
$$;
COMMENT ON FUNCTION ledger.check_worker(text) IS
    'Raises 22023 for a worker without a name or with one too long. Internal.';

-- A list of recipients: distinct, and in the one order in which every call locks.
CREATE OR REPLACE FUNCTION ledger.check_recipients(recipients text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    IF recipients IS NULL OR cardinality(recipients) > 10000 OR array_ndims(recipients) > 1 THEN
        PERFORM ledger.refuse('recipients', 'must be an array of one dimension and at most 10000 elements');
    END IF;
    IF EXISTS (SELECT FROM unnest(recipients) AS u (r) WHERE u.r IS NULL OR char_length(u.r) > 255) THEN
        PERFORM ledger.refuse('recipients', 'each must not be NULL and have at most 255 characters');
    END IF;
    RETURN ARRAY(SELECT DISTINCT u.r COLLATE "C" FROM unnest(recipients) AS u (r) ORDER BY 1);
END
$$;
COMMENT ON FUNCTION ledger.check_recipients(text[]) IS
    'Raises 22023 for recipients outside their limits, else returns them distinct and in order. Internal.';

CREATE OR REPLACE FUNCTION ledger.check_channels(channels text[], n integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    END IF;
    IF channels IS NULL OR array_position(channels, NULL) IS NOT NULL
       OR EXISTS (SELECT FROM unnest(channels) AS u (c), ledger.settings(u.c) s WHERE s.channel IS NULL) THEN
        PERFORM ledger.refuse('channels', 'must not be NULL, and each needs a row in ledger.channels or the prefix listener:');
    END IF;
    PERFORM ledger.check_n(n);
END
$$;
COMMENT ON FUNCTION ledger.check_channels(text[], integer) IS
    'Raises what is wrong with a call that claims n rows of channels. Internal.';

CREATE OR REPLACE FUNCTION ledger.check_n(n integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF n IS NULL OR n NOT BETWEEN 1 AND 10000 THEN
        PERFORM ledger.refuse('n', 'must be 1 to 10000');
    END IF;
END
$$;
COMMENT ON FUNCTION ledger.check_n(integer) IS
    'Raises 22023 for a number of rows outside its limits. Internal.';

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

CREATE OR REPLACE FUNCTION ledger.channels_consistent() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
BEGIN
    IF NOT EXISTS (SELECT FROM ledger.channels c WHERE c.channel = '*') THEN
        RAISE EXCEPTION 'row * of ledger.channels holds the defaults and must stay' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT c.channel INTO wrong FROM ledger.channels c, ledger.channels d
    WHERE d.channel = '*' AND coalesce(c.retention, d.retention) > '0'
      AND (coalesce(c.horizon, d.horizon) = '0' OR coalesce(c.horizon, d.horizon) > coalesce(c.retention, d.retention));
    IF FOUND THEN
        RAISE EXCEPTION 'channel "%": retention is shorter than horizon', wrong
            USING ERRCODE = 'invalid_parameter_value', HINT = 'An event replayed after its row was purged would be delivered a second time.';
    END IF;
    SELECT c.channel INTO wrong FROM ledger.channels c, ledger.channels d
    WHERE d.channel = '*' AND (coalesce(c.lease, d.lease) > coalesce(c.hold_cap, d.hold_cap)
                               OR coalesce(c.backoff_min, d.backoff_min) > coalesce(c.backoff_max, d.backoff_max));
    IF FOUND THEN
        RAISE EXCEPTION 'channel "%": lease is longer than hold_cap, or backoff_min than backoff_max', wrong
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH RECURSIVE chain (start, channel) AS (
        SELECT c.channel, c.after_channel FROM ledger.channels c WHERE c.after_channel IS NOT NULL
        UNION
        SELECT chain.start, c.after_channel FROM chain JOIN ledger.channels c USING (channel) WHERE c.after_channel IS NOT NULL
    )
    SELECT chain.start INTO wrong FROM chain, ledger.settings(chain.channel) s
    WHERE s.channel IS NULL OR chain.channel = chain.start;
    IF FOUND THEN
        RAISE EXCEPTION 'channel "%": after_channel leads to an unknown channel or back to itself', wrong
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM ledger.put_in_force();
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION ledger.channels_consistent() IS
    'Refuses settings that contradict one another, with the defaults filled in; puts the others in force. Internal.';

CREATE OR REPLACE FUNCTION ledger.put_in_force() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    limited CONSTANT boolean := EXISTS (SELECT FROM ledger.role_tenants);
BEGIN
    DELETE FROM ledger.channels_in_force f WHERE NOT EXISTS (SELECT FROM ledger.channels c WHERE c.channel = f.channel);
    INSERT INTO ledger.channels_in_force (channel, mode, on_uncertain, provider_window, after_channel, max_attempts, lease, hold_cap,
                                          backoff_min, backoff_max, retention, horizon, plain)
    SELECT c.channel, s.mode, s.on_uncertain, s.provider_window, s.after_channel, s.max_attempts, s.lease, s.hold_cap,
           s.backoff_min, s.backoff_max, s.retention, s.horizon, NOT limited AND s.after_channel IS NULL AND s.horizon > '0'
    FROM ledger.channels c, ledger.settings(c.channel) s WHERE c.channel <> '*'
    ON CONFLICT (channel) DO UPDATE
    SET (mode, on_uncertain, provider_window, after_channel, max_attempts, lease, hold_cap, backoff_min, backoff_max,
         retention, horizon, plain)
      = (excluded.mode, excluded.on_uncertain, excluded.provider_window, excluded.after_channel, excluded.max_attempts,
         excluded.lease, excluded.hold_cap, excluded.backoff_min, excluded.backoff_max, excluded.retention, excluded.horizon,
         excluded.plain);
END
$$;
COMMENT ON FUNCTION ledger.put_in_force() IS
    'Brings ledger.channels_in_force up to date. Internal.';

CREATE OR REPLACE FUNCTION ledger.role_tenants_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM ledger.put_in_force();
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION ledger.role_tenants_changed() IS
    'Puts a change of ledger.role_tenants in force. Internal.';

CREATE OR REPLACE FUNCTION ledger.one_writer() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Two that change settings at the same time would each overlook what the other has not committed.
    LOCK TABLE ledger.channels_in_force IN SHARE ROW EXCLUSIVE MODE;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION ledger.one_writer() IS
    'Lets one transaction at a time change settings; reading them goes on. Internal.';

CREATE OR REPLACE TRIGGER one_writer BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger.channels
    FOR EACH STATEMENT EXECUTE FUNCTION ledger.one_writer();
CREATE OR REPLACE TRIGGER channels_consistent AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger.channels
    FOR EACH STATEMENT EXECUTE FUNCTION ledger.channels_consistent();
CREATE OR REPLACE TRIGGER one_writer BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger.role_tenants
    FOR EACH STATEMENT EXECUTE FUNCTION ledger.one_writer();
CREATE OR REPLACE TRIGGER role_tenants_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger.role_tenants
    FOR EACH STATEMENT EXECUTE FUNCTION ledger.role_tenants_changed();

-- Guesses that err on the side of not sending: two-week topics and outboxes are covered, an open outcome waits.
INSERT INTO ledger.channels (channel, mode, on_uncertain, provider_window, max_attempts, lease, hold_cap,
                             backoff_min, backoff_max, retention, horizon)
VALUES ('*', 'guarded', 'hold', '24 hours', 10, '1 minute', '15 minutes', '5 seconds', '1 hour', '90 days', '30 days')
ON CONFLICT (channel) DO NOTHING;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC; -- PostgreSQL lets everybody execute a new function

-- Those who read tables read their own tenants' rows. The owner, and with it every function that runs as the owner,
-- is not held to this; the functions test the tenant themselves.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['notification_dispatches', 'events', 'notifications', 'dispatch_attempts', 'audit'] LOOP
        IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = ('ledger.' || name)::regclass AND p.polname = 'own_tenants') THEN
            EXECUTE format('ALTER TABLE ledger.%I ENABLE ROW LEVEL SECURITY', name);
            EXECUTE format('CREATE POLICY own_tenants ON ledger.%I USING (%s)', name,
                CASE WHEN name IN ('dispatch_attempts', 'audit')
                     THEN '(SELECT ledger.own_tenants()) IS NULL OR EXISTS (SELECT FROM ledger.notification_dispatches d WHERE d.id = dispatch_id)'
                     ELSE '(SELECT ledger.own_tenants()) IS NULL OR tenant = ANY ((SELECT ledger.own_tenants())::text[])' END);
        END IF;
    END LOOP;
END
$$;

-- +goose StatementEnd
