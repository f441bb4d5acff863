-- What a recipient's list of notifications needs: an order that a client can follow by id without missing a row, the
-- list itself, marking as read, and a signal that there is something new.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

-- Transactions commit in another order than the one in which they drew their ids: whoever has seen 6 and asks for what
-- is above it would never see 5. So each transaction that writes notifications holds, from before it draws its first id
-- to its end, an advisory lock that is named for the last id drawn then. Whatever it draws is above that. The lock is a
-- shared one: nobody waits. What is below the lowest such name is settled, and lists show nothing else. It is not the
-- oldest running transaction that counts: one that writes no notifications, in this database or another, holds up none.
CREATE OR REPLACE FUNCTION ledger.notifications_order() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    mine CONSTANT text := pg_current_xact_id()::text;
    last bigint;
BEGIN
    -- One lock a transaction. A savepoint that is rolled back gives up its lock, and takes this setting back.
    IF current_setting('ledger.notifications_order', true) IS DISTINCT FROM mine THEN
        SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END INTO last FROM ledger.notifications_id_seq s;
        PERFORM pg_advisory_xact_lock_shared(1919707502, (last::bit(32))::integer);
        PERFORM set_config('ledger.notifications_order', mine, true);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION ledger.notifications_order() IS
    'Shows, until the transaction ends, above which id it writes notifications; see ledger.notifications_settled. Internal.';

-- A statement's trigger runs before the statement draws ids; a row's would run after.
CREATE OR REPLACE TRIGGER notifications_order BEFORE INSERT ON ledger.notifications
    FOR EACH STATEMENT EXECUTE FUNCTION ledger.notifications_order();

CREATE OR REPLACE FUNCTION ledger.notifications_settled() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    last bigint;
    open bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM ledger.refuse_isolation();
    END IF;
    -- In this order. Who draws an id after the first statement draws a higher one; who drew before holds its lock at
    -- the second or is committed, and then visible to every statement that begins later.
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END INTO last FROM ledger.notifications_id_seq s;
    -- A lock's name is 32 bits long: how far below last it is, where it is not above.
    SELECT min(last - behind.n) INTO open
    FROM pg_locks l CROSS JOIN LATERAL (SELECT (last - l.objid::bigint) & 4294967295 AS n) AS behind
    WHERE l.locktype = 'advisory' AND l.classid = 1919707502 AND l.objsubid = 2 AND behind.n < 2147483648
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    RETURN least(last, open);
END
$$;
COMMENT ON FUNCTION ledger.notifications_settled() IS
    'Id up to which no notification can appear any more: a statement that begins after it sees all there are. A client that follows the list by id is shown nothing above it.';

CREATE OR REPLACE FUNCTION ledger.list_notifications(tenant text, recipient text, after_id bigint, n integer, up_to bigint DEFAULT NULL)
RETURNS TABLE (id bigint, created_at timestamptz, read_at timestamptz, type text, data jsonb)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    settled bigint := list_notifications.up_to;
BEGIN
    IF list_notifications.tenant IS NULL OR list_notifications.recipient IS NULL THEN
        PERFORM ledger.refuse('recipient', 'must not be NULL, nor tenant');
    ELSIF list_notifications.n IS NULL OR list_notifications.n NOT BETWEEN 1 AND 1000 THEN
        PERFORM ledger.refuse('n', 'must be 1 to 1000');
    ELSIF list_notifications.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    IF settled IS NULL THEN
        settled := ledger.notifications_settled();
    END IF;
    IF list_notifications.after_id IS NULL THEN
        RETURN QUERY
            SELECT newest.* FROM (
                SELECT t.id, t.created_at, t.read_at, t.type, t.data FROM ledger.notifications t
                WHERE t.tenant = list_notifications.tenant AND t.recipient = list_notifications.recipient AND t.id <= settled
                ORDER BY t.id DESC LIMIT list_notifications.n) AS newest
            ORDER BY newest.id;
        RETURN;
    END IF;
    RETURN QUERY
        SELECT t.id, t.created_at, t.read_at, t.type, t.data FROM ledger.notifications t
        WHERE t.tenant = list_notifications.tenant AND t.recipient = list_notifications.recipient
          AND t.id > list_notifications.after_id AND t.id <= settled
        ORDER BY t.id LIMIT list_notifications.n;
END
$$;
COMMENT ON FUNCTION ledger.list_notifications(text, text, bigint, integer, bigint) IS
    'A recipient''s settled notifications above after_id, n at most, by id; where after_id is NULL the newest n. Asking for what is above the last one shown misses none. up_to is an earlier answer of ledger.notifications_settled.';

CREATE OR REPLACE FUNCTION ledger.read_notifications(tenant text, recipient text, ids bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    changed integer;
BEGIN
    IF read_notifications.tenant IS NULL OR read_notifications.recipient IS NULL THEN
        PERFORM ledger.refuse('recipient', 'must not be NULL, nor tenant');
    ELSIF cardinality(read_notifications.ids) > 1000 THEN
        PERFORM ledger.refuse('ids', 'must be 1000 at most');
    ELSIF read_notifications.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    UPDATE ledger.notifications AS t SET read_at = clock_timestamp()
    WHERE t.id IN (SELECT u.id FROM ledger.notifications u
                   WHERE u.tenant = read_notifications.tenant AND u.recipient = read_notifications.recipient
                     AND u.id = ANY (read_notifications.ids) AND u.read_at IS NULL
                   ORDER BY u.id FOR NO KEY UPDATE);
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION ledger.read_notifications(text, text, bigint[]) IS
    'Marks notifications as read, those of the recipient alone, and returns how many were not yet.';

CREATE OR REPLACE FUNCTION ledger.announce_notification(tenant text, event_key text, recipient text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    newest bigint;
BEGIN
    IF announce_notification.tenant <> ALL (ledger.own_tenants()) THEN
        PERFORM ledger.refuse_tenant();
    END IF;
    SELECT t.id INTO newest FROM ledger.notifications t
    WHERE t.tenant = announce_notification.tenant AND t.event_key = announce_notification.event_key AND t.recipient = announce_notification.recipient
    ORDER BY t.generation DESC LIMIT 1;
    -- An id alone: everybody who may log in may listen.
    PERFORM pg_notify('ledger_notifications', newest::text) WHERE newest IS NOT NULL;
    RETURN newest;
END
$$;
COMMENT ON FUNCTION ledger.announce_notification(text, text, text) IS
    'Tells those who listen on ledger_notifications that the notification of an event to a recipient is there, and returns its id; NULL: it is not. Call it in a transaction of its own, after that of the notification: those that notify commit one after the other.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
