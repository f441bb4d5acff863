-- Events that could not be published, and what people ask the running relay to do.

-- +goose Up
-- +goose StatementBegin

CREATE TABLE IF NOT EXISTS outbox.dead_letters (
    id            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    slot          text        NOT NULL,
    source_table  text        NOT NULL,
    event_id      text        NOT NULL,
    position      text        NOT NULL,
    topic         text,
    partition     integer,
    partition_key bytea,
    value         bytea,
    is_null       boolean     NOT NULL,
    headers       jsonb       NOT NULL,
    event_key     text,
    event_type    text,
    occurred_at   timestamptz,
    class         text        NOT NULL,
    reason        text        NOT NULL,
    attempts      integer     NOT NULL DEFAULT 1,
    state         text        NOT NULL,
    holds         boolean     NOT NULL DEFAULT false,
    actor         text,
    note          text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT dead_letters_pkey         PRIMARY KEY (id),
    CONSTRAINT dead_letters_event        UNIQUE (slot, source_table, event_id),
    CONSTRAINT dead_letters_position     CHECK (position ~ '^[0-9a-f]{16}-[0-9a-f]{8}-[0-9a-f]{16}-[0-9a-f]{8}$'),
    CONSTRAINT dead_letters_partition    CHECK (partition >= 0),
    CONSTRAINT dead_letters_null         CHECK (NOT is_null OR value IS NULL),
    CONSTRAINT dead_letters_class        CHECK (class ~ '^[a-z_]{1,32}$'),
    CONSTRAINT dead_letters_attempts     CHECK (attempts >= 0),
    CONSTRAINT dead_letters_state_known  CHECK (state IN ('parked', 'held', 'requeued', 'published', 'discarded'))
);

-- What a session has to know when it begins: letters that the stream may bring again. Positions have a fixed width, so
-- they sort as text in the order in which events were committed.
CREATE INDEX IF NOT EXISTS dead_letters_position_idx ON outbox.dead_letters (slot, position COLLATE "C");
-- What waits for somebody, in the order in which it was parked.
CREATE INDEX IF NOT EXISTS dead_letters_open_idx ON outbox.dead_letters (slot, id)
    WHERE state IN ('parked', 'held', 'requeued');
-- The letters of one key. A key may be longer than what an index takes.
CREATE INDEX IF NOT EXISTS dead_letters_key_idx ON outbox.dead_letters (slot, sha256(coalesce(partition_key, '')), id)
    WHERE state IN ('parked', 'held', 'requeued');

COMMENT ON TABLE outbox.dead_letters IS
    'Events that cannot be published as they are, and those that wait behind one of them. Only the relay writes here; relay dead-letters shows them and asks it to.';
COMMENT ON COLUMN outbox.dead_letters.id IS
    'Number of the letter, in the order in which they were parked.';
COMMENT ON COLUMN outbox.dead_letters.slot IS
    'Replication slot whose relay parked it.';
COMMENT ON COLUMN outbox.dead_letters.source_table IS
    'Table that the event is from, quoted where SQL needs it; "message" and the prefix for one without a row.';
COMMENT ON COLUMN outbox.dead_letters.event_id IS
    'Event ID. With slot and source table it is the event''s identity: one that comes again and finds its letter is not sent, whatever the state.';
COMMENT ON COLUMN outbox.dead_letters.position IS
    'The record''s relay_position.';
COMMENT ON COLUMN outbox.dead_letters.topic IS
    'Topic that it was meant for; NULL: none could be made.';
COMMENT ON COLUMN outbox.dead_letters.partition IS
    'Partition, where a column of the row names it; NULL: the key decides.';
COMMENT ON COLUMN outbox.dead_letters.partition_key IS
    'Key of the record; NULL: it has none.';
COMMENT ON COLUMN outbox.dead_letters.value IS
    'Value of the record, byte for byte. NULL with is_null false: it is larger than what is kept, and stands in the source table alone.';
COMMENT ON COLUMN outbox.dead_letters.is_null IS
    'Whether the value is null, a tombstone.';
COMMENT ON COLUMN outbox.dead_letters.headers IS
    'Headers of the record, in order: pairs of name and value, a value that is no text as {"base64": ...}. An object {"unreadable": ...} where none could be made of the headers column.';
COMMENT ON COLUMN outbox.dead_letters.event_key IS
    'Event key, if the event has one.';
COMMENT ON COLUMN outbox.dead_letters.event_type IS
    'Event type, if the event has one.';
COMMENT ON COLUMN outbox.dead_letters.occurred_at IS
    'When it happened, as the event says, if that is a time.';
COMMENT ON COLUMN outbox.dead_letters.class IS
    'What is wrong, as one of a few words: unreadable, no_key, bad_header, bad_topic, bad_partition, too_large, refused, held.';
COMMENT ON COLUMN outbox.dead_letters.reason IS
    'What is wrong, as a sentence; never a part of key or value.';
COMMENT ON COLUMN outbox.dead_letters.attempts IS
    'How often it was given to the broker or found unfit: 0 for one that only waits behind another.';
COMMENT ON COLUMN outbox.dead_letters.state IS
    'parked: waits for somebody; held: waits for the parked one of its key; requeued: about to be published again; published: acknowledged since; discarded: never to be published.';
COMMENT ON COLUMN outbox.dead_letters.holds IS
    'Whether later events of the same topic and key wait for it while it is parked, held or requeued.';
COMMENT ON COLUMN outbox.dead_letters.actor IS
    'Who asked for the last change; NULL: nobody yet.';
COMMENT ON COLUMN outbox.dead_letters.note IS
    'Why, in their words.';
COMMENT ON COLUMN outbox.dead_letters.created_at IS
    'When it was parked.';
COMMENT ON COLUMN outbox.dead_letters.updated_at IS
    'When it last changed.';

CREATE TABLE IF NOT EXISTS outbox.requests (
    id         bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    slot       text        NOT NULL,
    kind       text        NOT NULL,
    args       jsonb       NOT NULL DEFAULT '{}',
    state      text        NOT NULL DEFAULT 'pending',
    progress   jsonb       NOT NULL DEFAULT '{}',
    actor      text        NOT NULL,
    reason     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT requests_pkey        PRIMARY KEY (id),
    CONSTRAINT requests_kind_known  CHECK (kind IN ('replay', 'requeue', 'discard', 'park')),
    CONSTRAINT requests_args        CHECK (jsonb_typeof(args) = 'object'),
    CONSTRAINT requests_progress    CHECK (jsonb_typeof(progress) = 'object'),
    CONSTRAINT requests_state_known CHECK (state IN ('pending', 'running', 'done', 'failed')),
    CONSTRAINT requests_actor       CHECK (char_length(actor) BETWEEN 1 AND 255),
    CONSTRAINT requests_reason      CHECK (char_length(reason) BETWEEN 1 AND 1000)
);

-- Read once a second by the relay that streams.
CREATE INDEX IF NOT EXISTS requests_open_idx ON outbox.requests (slot, id) WHERE state IN ('pending', 'running');

COMMENT ON TABLE outbox.requests IS
    'What people ask of the relay that holds a slot. They insert, it does the work, for nobody else may publish. Rows stay as the record of who did what.';
COMMENT ON COLUMN outbox.requests.id IS
    'Number of the request. Those of one kind are done one after the other.';
COMMENT ON COLUMN outbox.requests.slot IS
    'Replication slot whose relay is asked.';
COMMENT ON COLUMN outbox.requests.kind IS
    'replay: publish events again; requeue and discard: dead letters; park: the event that the relay is halted at.';
COMMENT ON COLUMN outbox.requests.args IS
    'What it is about; depends on the kind.';
COMMENT ON COLUMN outbox.requests.state IS
    'pending: no relay has seen it; running: begun, and gone on with by the next relay should this one die; done or failed: over.';
COMMENT ON COLUMN outbox.requests.progress IS
    'How far it has come, and what went wrong; depends on the kind.';
COMMENT ON COLUMN outbox.requests.actor IS
    'Who asks.';
COMMENT ON COLUMN outbox.requests.reason IS
    'Why, in their words.';
COMMENT ON COLUMN outbox.requests.created_at IS
    'When it was asked.';
COMMENT ON COLUMN outbox.requests.updated_at IS
    'When state or progress last changed.';

-- +goose StatementEnd
