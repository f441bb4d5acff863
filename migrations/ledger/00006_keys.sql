-- Key builders: one form of a key for all languages. docs/keys.md is their specification, and
-- ledger/testdata/keys.json the vectors that every implementation is tested with.

-- +goose Up
-- +goose StatementBegin

DO $$ BEGIN PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); END $$;

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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;

-- +goose StatementEnd
