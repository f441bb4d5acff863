-- The ledger's tables: one delivery per business event, recipient and channel.
--
-- relay migrate up applies this file; so does
--     psql --single-transaction -v ON_ERROR_STOP=1 -f 00001_tables.sql
-- Applying it again, by either way, changes nothing. It needs CREATE on the database, or a schema ledger that the
-- migration role owns. It grants nothing to anybody: roles/ledger.sql does.

-- +goose Up
-- +goose StatementBegin

DO $$
BEGIN
    -- The names below resolve while this file runs: nobody's search_path, and nothing in public, may have a say.
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false);
    -- Lengths are in characters, and equal keys must be equal bytes for callers in every language.
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'schema ledger needs a database in encoding UTF8; this one is in %', getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
    IF to_regnamespace('ledger') IS NULL THEN
        CREATE SCHEMA ledger;
    END IF;
END
$$;
COMMENT ON SCHEMA ledger IS 'Delivery ledger: one delivery per business event, recipient and channel, however often the event comes again.';

CREATE TABLE IF NOT EXISTS ledger.channels (
    channel         text COLLATE "C" NOT NULL,
    mode            text COLLATE "C",
    on_uncertain    text COLLATE "C",
    provider_window interval,
    after_channel   text COLLATE "C",
    max_attempts    integer,
    lease           interval,
    hold_cap        interval,
    backoff_min     interval,
    backoff_max     interval,
    retention       interval,
    horizon         interval,

    CONSTRAINT channels_pkey PRIMARY KEY (channel),
    CONSTRAINT channels_channel_length        CHECK (char_length(channel) BETWEEN 1 AND 64),
    CONSTRAINT channels_mode_known            CHECK (mode IN ('guarded', 'simple')),
    CONSTRAINT channels_on_uncertain_known    CHECK (on_uncertain IN ('resend', 'probe', 'hold')),
    CONSTRAINT channels_provider_window_range CHECK (provider_window BETWEEN '0' AND '100 years'),
    CONSTRAINT channels_max_attempts_range    CHECK (max_attempts BETWEEN 1 AND 1000000),
    CONSTRAINT channels_lease_range           CHECK (lease > '0' AND lease <= '7 days'),
    CONSTRAINT channels_hold_cap_range        CHECK (hold_cap > '0' AND hold_cap <= '7 days'),
    CONSTRAINT channels_backoff_min_range     CHECK (backoff_min BETWEEN '0' AND '365 days'),
    CONSTRAINT channels_backoff_max_range     CHECK (backoff_max BETWEEN '0' AND '365 days'),
    CONSTRAINT channels_retention_range       CHECK (retention BETWEEN '0' AND '100 years'),
    CONSTRAINT channels_horizon_range         CHECK (horizon BETWEEN '0' AND '100 years'),
    CONSTRAINT channels_defaults_whole        CHECK (channel <> '*' OR (
        num_nulls(mode, on_uncertain, provider_window, max_attempts, lease, hold_cap, backoff_min, backoff_max,
                  retention, horizon) = 0 AND after_channel IS NULL))
);

COMMENT ON TABLE ledger.channels IS
    'Settings, one row a channel. Row * holds the defaults: what is NULL in another row comes from it. A channel listener:<name> needs no row; any other without one is refused.';
COMMENT ON COLUMN ledger.channels.channel IS
    'Means of delivery, such as email or listener:invoice; * for the defaults. 1 to 64 characters.';
COMMENT ON COLUMN ledger.channels.mode IS
    'guarded: no effect without begin_effect. simple: at least once, or exactly once where the effect is a row of this database.';
COMMENT ON COLUMN ledger.channels.on_uncertain IS
    'What follows a lease that ended after its effect began: resend (harmless, or the provider knows its key), probe (ask the provider), hold (ask the operator).';
COMMENT ON COLUMN ledger.channels.provider_window IS
    'How long after the first effect began the provider still knows its key; never resent after that.';
COMMENT ON COLUMN ledger.channels.after_channel IS
    'Channel that must have delivered the same event to the same recipient before; NULL: none. Not taken from row *.';
COMMENT ON COLUMN ledger.channels.max_attempts IS
    'Attempts before a row is dead, counted when reserved. A row keeps the number it was made with.';
COMMENT ON COLUMN ledger.channels.lease IS
    'How long a reservation holds where the caller does not say.';
COMMENT ON COLUMN ledger.channels.hold_cap IS
    'How long one reservation holds at most, all its renewals included.';
COMMENT ON COLUMN ledger.channels.backoff_min IS
    'Wait after the first attempt failed; it doubles with each further one.';
COMMENT ON COLUMN ledger.channels.backoff_max IS
    'Longest wait after an attempt failed.';
COMMENT ON COLUMN ledger.channels.retention IS
    'How long a row stays after its end; 0: for ever. At least the horizon, or a replay would be delivered a second time.';
COMMENT ON COLUMN ledger.channels.horizon IS
    'Age beyond which an event without a row is refused as expired; 0: none. More than the outbox can replay plus what the topic retains.';

CREATE TABLE IF NOT EXISTS ledger.role_tenants (
    role   text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,

    CONSTRAINT role_tenants_pkey PRIMARY KEY (role, tenant),
    CONSTRAINT role_tenants_tenant_length CHECK (char_length(tenant) <= 64)
);
-- What reserve reads: one row instead of two to be merged. Two triggers keep it true.
CREATE TABLE IF NOT EXISTS ledger.channels_in_force (
    LIKE ledger.channels,
    plain boolean NOT NULL,

    CONSTRAINT channels_in_force_pkey PRIMARY KEY (channel)
);
COMMENT ON TABLE ledger.channels_in_force IS
    'ledger.channels with the defaults filled in. Kept by its triggers; never written by hand.';
COMMENT ON COLUMN ledger.channels_in_force.channel IS
    'As in ledger.channels.';
COMMENT ON COLUMN ledger.channels_in_force.mode IS
    'The channel''s own, else that of row *; so are the columns that follow.';
COMMENT ON COLUMN ledger.channels_in_force.on_uncertain IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.provider_window IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.after_channel IS
    'The channel''s own; row * has none.';
COMMENT ON COLUMN ledger.channels_in_force.max_attempts IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.lease IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.hold_cap IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.backoff_min IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.backoff_max IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.retention IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.horizon IS
    'In force.';
COMMENT ON COLUMN ledger.channels_in_force.plain IS
    'Whether a new event needs nothing but its own row: no predecessor, a horizon, and no role that is limited to tenants.';

COMMENT ON TABLE ledger.role_tenants IS
    'Limits roles to tenants: a login role with rows here reaches only those, a role without rows reaches all.';
COMMENT ON COLUMN ledger.role_tenants.role IS
    'Login role, as session_user names it; SET ROLE changes nothing. Behind a pooler, the role the pooler logs in with.';
COMMENT ON COLUMN ledger.role_tenants.tenant IS
    'A tenant it may act for.';

-- One row a boundary. There are no CHECK constraints, for each statement would parse and plan them anew, and that took
-- longer than the insert itself (60 us and 18 us when measured): only the functions of this schema write here, they
-- test lengths before the index does, and the tests hold every row against the states' rules. No index leads with, and no predicate uses, a column that changes while a reservation is held,
-- except due_at: reserve and complete together are one update that touches an index, begin_effect none.
CREATE TABLE IF NOT EXISTS ledger.notification_dispatches (
    id              bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    fence           bigint  NOT NULL DEFAULT 0,
    gen_fence       bigint  NOT NULL DEFAULT 0,
    due_at          timestamptz,
    lease_until     timestamptz,
    held_since      timestamptz,
    first_effect_at timestamptz,
    effect_at       timestamptz,
    probe_until     timestamptz,
    blocked_since   timestamptz,
    created_at      timestamptz NOT NULL,
    done_at         timestamptz,
    generation      integer NOT NULL DEFAULT 1,
    attempts        integer NOT NULL DEFAULT 0,
    max_attempts    integer NOT NULL,
    state           text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL DEFAULT '',
    event_key       text COLLATE "C" NOT NULL,
    recipient       text COLLATE "C" NOT NULL DEFAULT '',
    channel         text COLLATE "C" NOT NULL,
    worker          text,
    payload_hash    text COLLATE "C",
    reason          text,
    provider_ref    text,
    result          jsonb,

    CONSTRAINT notification_dispatches_pkey PRIMARY KEY (id),
    CONSTRAINT notification_dispatches_boundary UNIQUE (tenant, event_key, recipient, channel)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_insert_scale_factor = 0.1);

-- Work to do: pending and failed rows by when they are due, reserved ones by when their lease ends.
CREATE INDEX IF NOT EXISTS notification_dispatches_due_idx
    ON ledger.notification_dispatches (due_at) WHERE due_at IS NOT NULL;
-- Uncertain rows, few by nature. A row enters and leaves this index only where its entry by due_at changes anyway.
-- There is none on done_at: each completion would pay for it, and purge finds old rows at the low end of the ids.
CREATE INDEX IF NOT EXISTS notification_dispatches_probe_idx
    ON ledger.notification_dispatches (probe_until) WHERE probe_until IS NOT NULL;

COMMENT ON TABLE ledger.notification_dispatches IS
    'One row a delivery: tenant, event key, recipient and channel. Only the functions of schema ledger write here.';
COMMENT ON COLUMN ledger.notification_dispatches.id IS
    'Short name of the row, for the calls that come after reserve.';
COMMENT ON COLUMN ledger.notification_dispatches.fence IS
    'Number of the newest reservation; it never falls. A caller with an older one is answered fenced or late_accepted.';
COMMENT ON COLUMN ledger.notification_dispatches.gen_fence IS
    'Fence when the generation began; reservations up to it belong to an earlier generation.';
COMMENT ON COLUMN ledger.notification_dispatches.due_at IS
    'Pending and failed: not before this. Reserved: the lease''s end. NULL otherwise.';
COMMENT ON COLUMN ledger.notification_dispatches.lease_until IS
    'Reserved: until when it is held. NULL otherwise.';
COMMENT ON COLUMN ledger.notification_dispatches.held_since IS
    'When the present hold began: a reservation''s, or a probe''s in state uncertain. NULL otherwise.';
COMMENT ON COLUMN ledger.notification_dispatches.first_effect_at IS
    'When an effect of this generation first began; the provider''s window runs from it.';
COMMENT ON COLUMN ledger.notification_dispatches.effect_at IS
    'When the effect of the newest reservation began. Set and not delivered: its outcome is open.';
COMMENT ON COLUMN ledger.notification_dispatches.probe_until IS
    'Uncertain: a probe may claim the row from then on. NULL otherwise.';
COMMENT ON COLUMN ledger.notification_dispatches.blocked_since IS
    'Since when the row has waited for its predecessor. NULL: it does not.';
COMMENT ON COLUMN ledger.notification_dispatches.created_at IS
    'When the row was made.';
COMMENT ON COLUMN ledger.notification_dispatches.done_at IS
    'When it became delivered, skipped or dead; retention runs from it. NULL otherwise.';
COMMENT ON COLUMN ledger.notification_dispatches.generation IS
    'Rises when an operator has a delivery made once more on purpose; part of the provider''s key.';
COMMENT ON COLUMN ledger.notification_dispatches.attempts IS
    'Reservations of this generation since the last redrive, less those released.';
COMMENT ON COLUMN ledger.notification_dispatches.max_attempts IS
    'Attempts before the row is dead: the channel''s setting when the row was made.';
COMMENT ON COLUMN ledger.notification_dispatches.state IS
    'pending, reserved, failed, uncertain; delivered, skipped or dead at the end.';
COMMENT ON COLUMN ledger.notification_dispatches.tenant IS
    'Whose event it is; empty in an application with one tenant. At most 64 characters.';
COMMENT ON COLUMN ledger.notification_dispatches.event_key IS
    'Stable name of the business event, see ledger.event_key. 1 to 255 characters.';
COMMENT ON COLUMN ledger.notification_dispatches.recipient IS
    'Who gets the delivery, see ledger.recipient; empty for a plain listener. At most 255 characters.';
COMMENT ON COLUMN ledger.notification_dispatches.channel IS
    'By which means. 1 to 64 characters.';
COMMENT ON COLUMN ledger.notification_dispatches.worker IS
    'Who holds the row or held it last, as it named itself.';
COMMENT ON COLUMN ledger.notification_dispatches.payload_hash IS
    'sha256:<64 hex> of the payload, the first that a caller gave; another one for the same key is a payload_mismatch. NULL: never given.';
COMMENT ON COLUMN ledger.notification_dispatches.reason IS
    'Why it is in this state, where its caller or the ledger said.';
COMMENT ON COLUMN ledger.notification_dispatches.provider_ref IS
    'The provider''s own name for the delivery.';
COMMENT ON COLUMN ledger.notification_dispatches.result IS
    'What the delivery gave, handed to callers that ask again.';

-- History, not referenced by a foreign key: its check would lock the dispatch row once more for each attempt.
CREATE TABLE IF NOT EXISTS ledger.dispatch_attempts (
    dispatch_id     bigint      NOT NULL,
    fence           bigint      NOT NULL,
    started_at      timestamptz,
    effect_at       timestamptz,
    ended_at        timestamptz NOT NULL,
    late_success_at timestamptz,
    generation      integer     NOT NULL,
    attempt         integer     NOT NULL,
    outcome         text COLLATE "C" NOT NULL,
    worker          text,
    reason          text,
    provider_ref    text,

    CONSTRAINT dispatch_attempts_pkey PRIMARY KEY (dispatch_id, fence),
    CONSTRAINT dispatch_attempts_outcome_known CHECK (outcome IN (
        'delivered', 'late_accepted', 'failed', 'dead', 'uncertain', 'skipped', 'released', 'lease_over', 'superseded'))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX IF NOT EXISTS dispatch_attempts_ended_idx ON ledger.dispatch_attempts (ended_at);

COMMENT ON TABLE ledger.dispatch_attempts IS
    'One row for each reservation or probe that has ended. Purged with its dispatch row, or when older than the retention of channel *.';
COMMENT ON COLUMN ledger.dispatch_attempts.dispatch_id IS
    'Dispatch row.';
COMMENT ON COLUMN ledger.dispatch_attempts.fence IS
    'Fence of the reservation or probe.';
COMMENT ON COLUMN ledger.dispatch_attempts.started_at IS
    'When it was reserved or claimed.';
COMMENT ON COLUMN ledger.dispatch_attempts.effect_at IS
    'When its effect began; NULL: it did not, as far as the ledger knows.';
COMMENT ON COLUMN ledger.dispatch_attempts.ended_at IS
    'When it ended.';
COMMENT ON COLUMN ledger.dispatch_attempts.late_success_at IS
    'When its holder came to report success after another had begun: the delivery may have happened twice. NULL: never.';
COMMENT ON COLUMN ledger.dispatch_attempts.generation IS
    'Generation it belongs to.';
COMMENT ON COLUMN ledger.dispatch_attempts.attempt IS
    'Number of the attempt since the last redrive.';
COMMENT ON COLUMN ledger.dispatch_attempts.outcome IS
    'delivered, late_accepted, failed, dead, uncertain, skipped, released; lease_over: it was not heard of in time; superseded: the row was decided without it.';
COMMENT ON COLUMN ledger.dispatch_attempts.worker IS
    'Who held it.';
COMMENT ON COLUMN ledger.dispatch_attempts.reason IS
    'Why it ended so, as its holder said.';
COMMENT ON COLUMN ledger.dispatch_attempts.provider_ref IS
    'The provider''s own name for the delivery, as its holder said.';

CREATE TABLE IF NOT EXISTS ledger.audit (
    id          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    dispatch_id bigint      NOT NULL,
    fence       bigint      NOT NULL,
    at          timestamptz NOT NULL,
    generation  integer     NOT NULL,
    action      text COLLATE "C" NOT NULL,
    from_state  text COLLATE "C" NOT NULL,
    to_state    text COLLATE "C" NOT NULL,
    role        text        NOT NULL,
    actor       text        NOT NULL,
    reason      text        NOT NULL,

    CONSTRAINT audit_pkey PRIMARY KEY (id),
    CONSTRAINT audit_action_known CHECK (action IN ('resolve', 'redrive', 'redrive_resend'))
);
CREATE INDEX IF NOT EXISTS audit_dispatch_idx ON ledger.audit (dispatch_id);

COMMENT ON TABLE ledger.audit IS
    'Decisions from outside: who resolved an uncertain row or had one delivered again, and why. Purged with the dispatch row.';
COMMENT ON COLUMN ledger.audit.id IS
    'Order of the decisions.';
COMMENT ON COLUMN ledger.audit.dispatch_id IS
    'Dispatch row.';
COMMENT ON COLUMN ledger.audit.fence IS
    'Its fence when it was decided.';
COMMENT ON COLUMN ledger.audit.at IS
    'When.';
COMMENT ON COLUMN ledger.audit.generation IS
    'Its generation after the decision.';
COMMENT ON COLUMN ledger.audit.action IS
    'resolve, redrive (the same generation) or redrive_resend (a new one).';
COMMENT ON COLUMN ledger.audit.from_state IS
    'State before.';
COMMENT ON COLUMN ledger.audit.to_state IS
    'State after.';
COMMENT ON COLUMN ledger.audit.role IS
    'Role that was logged in.';
COMMENT ON COLUMN ledger.audit.actor IS
    'Who decided, a person or a probe, as the caller said.';
COMMENT ON COLUMN ledger.audit.reason IS
    'Why, as the caller said.';

CREATE TABLE IF NOT EXISTS ledger.events (
    occurred_at   timestamptz NOT NULL,
    remembered_at timestamptz NOT NULL,
    tenant        text COLLATE "C" NOT NULL DEFAULT '',
    event_key     text COLLATE "C" NOT NULL,
    event_type    text NOT NULL,
    source        text,
    payload       bytea,
    headers       jsonb,

    CONSTRAINT events_pkey PRIMARY KEY (tenant, event_key),
    CONSTRAINT events_tenant_length     CHECK (char_length(tenant) <= 64),
    CONSTRAINT events_event_key_length  CHECK (char_length(event_key) BETWEEN 1 AND 255),
    CONSTRAINT events_event_type_length CHECK (char_length(event_type) BETWEEN 1 AND 64),
    CONSTRAINT events_source_length     CHECK (char_length(source) <= 255),
    CONSTRAINT events_headers_object    CHECK (jsonb_typeof(headers) = 'object')
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX IF NOT EXISTS events_remembered_idx ON ledger.events (remembered_at);

COMMENT ON TABLE ledger.events IS
    'What a later attempt needs of an event, so that it works when the topic no longer has it. Purged with the last of its dispatch rows.';
COMMENT ON COLUMN ledger.events.occurred_at IS
    'When the event happened.';
COMMENT ON COLUMN ledger.events.remembered_at IS
    'When the row was made.';
COMMENT ON COLUMN ledger.events.tenant IS
    'Whose event it is.';
COMMENT ON COLUMN ledger.events.event_key IS
    'Stable name of the business event.';
COMMENT ON COLUMN ledger.events.event_type IS
    'What happened.';
COMMENT ON COLUMN ledger.events.source IS
    'Where it came from, such as topic, partition and offset; for people.';
COMMENT ON COLUMN ledger.events.payload IS
    'The record''s value, byte for byte.';
COMMENT ON COLUMN ledger.events.headers IS
    'The record''s headers: an object, or NULL.';

CREATE TABLE IF NOT EXISTS ledger.notifications (
    id         bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL DEFAULT now(),
    read_at    timestamptz,
    generation integer     NOT NULL DEFAULT 1,
    tenant     text COLLATE "C" NOT NULL DEFAULT '',
    event_key  text COLLATE "C" NOT NULL,
    recipient  text COLLATE "C" NOT NULL,
    type       text        NOT NULL,
    data       jsonb       NOT NULL DEFAULT '{}',

    CONSTRAINT notifications_pkey PRIMARY KEY (id),
    CONSTRAINT notifications_boundary UNIQUE (tenant, event_key, recipient, generation),
    CONSTRAINT notifications_tenant_length    CHECK (char_length(tenant) <= 64),
    CONSTRAINT notifications_event_key_length CHECK (char_length(event_key) BETWEEN 1 AND 255),
    CONSTRAINT notifications_recipient_length CHECK (char_length(recipient) BETWEEN 1 AND 255),
    CONSTRAINT notifications_type_length      CHECK (char_length(type) BETWEEN 1 AND 255)
);
CREATE INDEX IF NOT EXISTS notifications_recipient_idx ON ledger.notifications (tenant, recipient, id);

COMMENT ON TABLE ledger.notifications IS
    'The durable database notification: written in the transaction in which once or complete answers delivered or late_accepted, before any broadcast.';
COMMENT ON COLUMN ledger.notifications.id IS
    'Rises with the time of insertion; a client that reconnects asks for what is above the last it saw.';
COMMENT ON COLUMN ledger.notifications.created_at IS
    'When it was written.';
COMMENT ON COLUMN ledger.notifications.read_at IS
    'When its recipient read it; NULL: not yet.';
COMMENT ON COLUMN ledger.notifications.generation IS
    'Generation of the delivery, see ledger.generation; 1 unless an operator had it made once more.';
COMMENT ON COLUMN ledger.notifications.tenant IS
    'Whose event it is.';
COMMENT ON COLUMN ledger.notifications.event_key IS
    'Stable name of the business event.';
COMMENT ON COLUMN ledger.notifications.recipient IS
    'Who is notified.';
COMMENT ON COLUMN ledger.notifications.type IS
    'What kind of notification, in the application''s words.';
COMMENT ON COLUMN ledger.notifications.data IS
    'What the application shows.';

-- +goose StatementEnd
