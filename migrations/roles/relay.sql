-- Rights of the relay's role and of the application's, and no more. For psql, as a superuser or as the owner of
-- schema outbox with the right to make roles, after the migrations, in the database of the outbox:
--
--     relay migrate print --roles | psql -v ON_ERROR_STOP=1 -v relay_role=relay -v app_role=app -d shop
--
-- Both names are optional; relay and app are the defaults. With -v operator_role=<name>
-- a third role is made, for people who look after dead letters. Running it again changes nothing. No password is set:
-- do that with \password or with your own means of authentication.

\if :{?relay_role} \else \set relay_role relay \endif
\if :{?app_role} \else \set app_role app \endif

-- The relay. REPLICATION is a strong right: it reads every publication of the database whatever SELECT says, and
-- may drop any slot. So give the relay a role of its own, and in pg_hba.conf a line for this one database, never the
-- keyword "replication", which opens a physical copy of the whole cluster. Where a hosting service keeps REPLICATION
-- to itself, make the role by the service's way first; this script then only grants.
SELECT format('CREATE ROLE %I LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE', :'relay_role')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'relay_role')
\gexec

GRANT CONNECT ON DATABASE :"DBNAME" TO :"relay_role";
GRANT USAGE ON SCHEMA outbox TO :"relay_role";
GRANT SELECT ON outbox.events TO :"relay_role";
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.relay_state TO :"relay_role";
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.backlog TO :"relay_role";
GRANT SELECT, INSERT ON outbox.recoveries TO :"relay_role";
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.dead_letters TO :"relay_role";
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.requests TO :"relay_role";
-- With -v prune=1, only where the relay prunes published events (retention.age, relay prune). Of other tables that it
-- prunes the same right has to be given by hand.
\if :{?prune}
\set pruning_role :relay_role
GRANT DELETE ON outbox.events TO :"pruning_role";
\endif

-- The application. A role without LOGIN when it has to be made: grant it to the roles that log in.
-- xact_id is left out on purpose: it decides what may be pruned, so nobody but its default writes it.
SELECT format('CREATE ROLE %I NOLOGIN', :'app_role')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'app_role')
\gexec

GRANT USAGE ON SCHEMA outbox TO :"app_role";
GRANT INSERT (id, tenant, event_key, aggregate_type, aggregate_id, event_type, payload, payload_bytes, headers, topic,
              partition_key, occurred_at) ON outbox.events TO :"app_role";
GRANT EXECUTE ON FUNCTION outbox.uuid_v7() TO :"app_role";
GRANT EXECUTE ON FUNCTION outbox.headers_fault(jsonb) TO :"app_role";
GRANT EXECUTE ON FUNCTION outbox.headers_valid(jsonb) TO :"app_role";
GRANT EXECUTE ON FUNCTION
    outbox.publish(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) TO :"app_role";
-- Events without a row. It needs no right on pg_logical_emit_message, for it runs with its owner's.
GRANT EXECUTE ON FUNCTION
    outbox.emit(text, text, text, text, json, bytea, jsonb, text, text, text, timestamptz, uuid) TO :"app_role";

-- Operators: they see dead letters, whose values they thereby may read, and ask the relay to do something about them. They
-- can change nothing themselves, and publish nothing. A role without LOGIN: grant it to the people's own.
\if :{?operator_role}
SELECT format('CREATE ROLE %I NOLOGIN', :'operator_role')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'operator_role')
\gexec

GRANT CONNECT ON DATABASE :"DBNAME" TO :"operator_role";
GRANT USAGE ON SCHEMA outbox TO :"operator_role";
GRANT SELECT ON outbox.relay_state, outbox.dead_letters, outbox.requests TO :"operator_role";
GRANT INSERT (slot, kind, args, actor, reason) ON outbox.requests TO :"operator_role";
\endif

-- With -v replay_role=<name>: people who have events published again. They may read all events, and call off what
-- anybody has asked for. Also a role without LOGIN.
\if :{?replay_role}
SELECT format('CREATE ROLE %I NOLOGIN', :'replay_role')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'replay_role')
\gexec

GRANT CONNECT ON DATABASE :"DBNAME" TO :"replay_role";
GRANT USAGE ON SCHEMA outbox TO :"replay_role";
GRANT SELECT ON outbox.events, outbox.relay_state, outbox.backlog, outbox.dead_letters, outbox.requests TO :"replay_role";
GRANT INSERT (slot, kind, args, actor, reason), UPDATE (state, progress, updated_at) ON outbox.requests TO :"replay_role";
\endif

-- PostgreSQL lets everybody write logical messages, so everybody who can connect can forge what outbox.emit writes. With
--     -v revoke_emit=1
-- nobody but superusers and the owner of outbox.emit may, in this database. Grant EXECUTE on pg_logical_emit_message
-- to roles whose own tools need it. Only a superuser can run this part.
\if :{?revoke_emit}
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure),
       format('GRANT EXECUTE ON FUNCTION %s TO %s', oid::regprocedure, (
           SELECT proowner::regrole::text FROM pg_catalog.pg_proc
           WHERE proname = 'emit' AND pronamespace = 'outbox'::regnamespace))
FROM pg_catalog.pg_proc
WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace
\gexec
\endif
