-- What a call may be given: refusals, checks, and the builders that give a key one form in all languages.
-- docs/keys.md is the specification of keys, and ledger/testdata/keys.json the vectors that every implementation is
-- tested with.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

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

CREATE OR REPLACE FUNCTION ledger.check_actor(actor text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF actor IS NULL OR char_length(actor) NOT BETWEEN 1 AND 255 THEN
        PERFORM ledger.refuse('actor', 'must have 1 to 255 characters');
    END IF;
END
$$;
COMMENT ON FUNCTION ledger.check_actor(text) IS
    'Raises 22023 for an actor without a name or with one too long. Internal.';

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

-- The rule that a broken key breaks is in the error's constraint name, for callers that ask and do not match texts.
CREATE OR REPLACE FUNCTION ledger.refuse_key(rule text) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'key breaks rule %', rule USING ERRCODE = 'invalid_parameter_value', CONSTRAINT = rule,
        HINT = CASE rule
            WHEN 'name_invalid' THEN 'A name has 1 to 64 characters: a lower-case letter, then lower-case letters, digits, and single - . or _ between them.'
            WHEN 'parts_missing' THEN 'A key needs the name of one concrete thing: at least one part, none NULL.'
            WHEN 'parts_too_many' THEN 'A key has at most 8 parts.'
            WHEN 'part_empty' THEN 'Every part has at least one character.'
            WHEN 'part_space' THEN 'A part neither begins nor ends with a space.'
            WHEN 'part_control' THEN 'A part holds no control characters: U+0000 to U+001F, U+007F to U+009F.'
            WHEN 'part_not_nfc' THEN 'A part is in Unicode normalization form C.'
            WHEN 'key_too_long' THEN 'A key has at most 255 characters, its escapes included.'
        END;
END
$$;
COMMENT ON FUNCTION ledger.refuse_key(text) IS
    'Raises 22023 with the rule that a key breaks as constraint name. Internal.';

CREATE OR REPLACE FUNCTION ledger.build_key(name text, parts text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key text := name;
    part text;
BEGIN
    -- Collation C, for another may count more letters into a-z.
    IF name IS NULL OR char_length(name) > 64
       OR name COLLATE "C" !~ '^[a-z][a-z0-9]*([-._][a-z0-9]+)*$' THEN
        PERFORM ledger.refuse_key('name_invalid');
    ELSIF parts IS NULL OR cardinality(parts) = 0 OR array_position(parts, NULL) IS NOT NULL THEN
        PERFORM ledger.refuse_key('parts_missing');
    ELSIF cardinality(parts) > 8 THEN
        PERFORM ledger.refuse_key('parts_too_many');
    END IF;
    FOREACH part IN ARRAY parts LOOP
        IF part = '' THEN
            PERFORM ledger.refuse_key('part_empty');
        ELSIF part COLLATE "C" ~ '[\u0001-\u001f\u007f-\u009f]' THEN
            PERFORM ledger.refuse_key('part_control');
        ELSIF left(part, 1) = ' ' OR right(part, 1) = ' ' THEN
            PERFORM ledger.refuse_key('part_space');
        ELSIF part IS NOT NFC NORMALIZED THEN
            PERFORM ledger.refuse_key('part_not_nfc');
        END IF;
        key := key || ':' || replace(replace(part, '%', '%25'), ':', '%3A');
    END LOOP;
    IF char_length(key) > 255 THEN
        PERFORM ledger.refuse_key('key_too_long');
    END IF;
    RETURN key;
END
$$;
COMMENT ON FUNCTION ledger.build_key(text, text[]) IS
    'Joins a name and parts by colons, with % and : in a part as %25 and %3A, and refuses whatever could be written in two ways. Internal.';

CREATE OR REPLACE FUNCTION ledger.event_key(name text, parts text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ledger.build_key(name, parts);
END
$$;
COMMENT ON FUNCTION ledger.event_key(text, text[]) IS
    'Key of a business event, such as scheduled-post-published:42: name of the event, then 1 to 8 parts that say which one. The same on every retry and every run. Raises 22023.';

CREATE OR REPLACE FUNCTION ledger.recipient(type text, id text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ledger.build_key(type, ARRAY[id]);
END
$$;
COMMENT ON FUNCTION ledger.recipient(text, text) IS
    'Who gets a delivery, such as user:42. The type is a word of the domain, never the name of a class. Raises 22023.';

CREATE OR REPLACE FUNCTION ledger.payload_hash(payload bytea) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
    SELECT 'sha256:' || encode(sha256(payload), 'hex');
END;
COMMENT ON FUNCTION ledger.payload_hash(bytea) IS
    'sha256: and 64 lower-case hex digits, over the bytes exactly as the caller has them; NULL for NULL.';

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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
