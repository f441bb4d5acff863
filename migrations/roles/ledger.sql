-- Rights of the ledger's roles, and no more. For psql, as a superuser or as the owner of schema ledger with the right
-- to make roles, after the migrations, in the database of the ledger:
--
--     relay migrate print --only ledger --roles | psql -v ON_ERROR_STOP=1 -v worker_role=ledger_worker -d shop
--
-- All names are optional: worker_role, operator_role and reader_role; ledger_worker, ledger_operator and ledger_reader
-- are the defaults. Running it again changes nothing. The roles are made without LOGIN: grant them to the roles that
-- log in, and list those in ledger.role_tenants where they are limited to tenants. Nobody is granted a table that
-- functions write, so nobody can write past their rules.

\if :{?worker_role} \else \set worker_role ledger_worker \endif
\if :{?operator_role} \else \set operator_role ledger_operator \endif
\if :{?reader_role} \else \set reader_role ledger_reader \endif

SELECT format('CREATE ROLE %I NOLOGIN', role)
FROM (VALUES (:'worker_role'), (:'operator_role'), (:'reader_role')) AS wanted (role)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role)
\gexec

GRANT USAGE ON SCHEMA ledger TO :"worker_role", :"operator_role", :"reader_role";

-- Workers: consumers, job workers, probes. They write the database notification themselves, next to once or complete.
GRANT EXECUTE ON FUNCTION
    ledger.event_key(text, text[]),
    ledger.recipient(text, text),
    ledger.payload_hash(bytea),
    ledger.generation(text, text, text, text),
    ledger.remember(text, text, text, bytea, jsonb, timestamptz, text),
    ledger.reserve(text, text, text, text, text, timestamptz, interval, text),
    ledger.reserve_batch(text, text, text[], text, text, timestamptz, interval, text),
    ledger.register_batch(text, text, text[], text, timestamptz, timestamptz, text),
    ledger.once(text, text, text, text, timestamptz, text, text),
    ledger.once_batch(text, text, text[], text, timestamptz, text),
    ledger.claim_due(text, text[], integer, interval),
    ledger.begin_effect(bigint, bigint, interval),
    ledger.renew(bigint, bigint, interval),
    ledger.complete(bigint, bigint, text, jsonb),
    ledger.complete_batch(bigint[], bigint[], text[]),
    ledger.fail(bigint, bigint, text, text, interval),
    ledger.skip(bigint, bigint, text),
    ledger.release(bigint, bigint),
    ledger.claim_uncertain(text, text[], integer, interval),
    ledger.resolve(bigint, bigint, text, text, text),
    ledger.park_record(text, integer, bigint, text, text, bytea, bytea, jsonb),
    ledger.remembered_type(text, text),
    ledger.wake_followers(text, text, text, text),
    ledger.configure_channel(text, text, text, interval, text, integer, interval, interval, interval),
    ledger.notifications_settled(),
    ledger.list_notifications(text, text, bigint, integer, bigint),
    ledger.read_notifications(text, text, bigint[]),
    ledger.announce_notification(text, text, text)
TO :"worker_role";
GRANT SELECT, INSERT (tenant, event_key, recipient, generation, type, data) ON ledger.notifications TO :"worker_role";
GRANT SELECT ON ledger.channels TO :"worker_role"; -- to be checked against what the source can replay

-- Operators decide what is open, and run the housekeeping.
GRANT EXECUTE ON FUNCTION
    ledger.resolve(bigint, bigint, text, text, text),
    ledger.redrive(bigint, text, text, boolean),
    ledger.sweep(integer),
    ledger.purge(integer),
    ledger.status(text, text),
    ledger.stats()
TO :"operator_role";

-- Readers: consoles and metrics. Not what was said in an event or a notification.
GRANT EXECUTE ON FUNCTION ledger.status(text, text), ledger.stats() TO :"reader_role";
GRANT SELECT ON ledger.channels, ledger.notification_dispatches, ledger.dispatch_attempts, ledger.audit TO :"reader_role";
GRANT SELECT (id, parked_at, record_offset, partition, topic, class, reason) ON ledger.parked_records TO :"reader_role";
GRANT SELECT (tenant, event_key, event_type, occurred_at, remembered_at, source) ON ledger.events TO :"reader_role";

-- Row security asks it for each statement that reads a table.
GRANT EXECUTE ON FUNCTION ledger.own_tenants() TO :"worker_role", :"reader_role";
