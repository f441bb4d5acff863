-- Settings of channels and limits of roles: what the calls read of them, and what keeps them free of contradiction.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

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

-- PL/pgSQL keeps its plan. In SQL, which cannot be inlined here, it would be planned anew by each call of the ledger.
CREATE OR REPLACE FUNCTION ledger.own_tenants() RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT array_agg(rt.tenant) FROM ledger.role_tenants rt WHERE rt.role = session_user);
END
$$;
COMMENT ON FUNCTION ledger.own_tenants() IS
    'Tenants that the login role is limited to; NULL: it is not limited.';

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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC; -- PostgreSQL lets everybody execute a new function

-- +goose StatementEnd
