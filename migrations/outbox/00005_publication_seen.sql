-- How the outbox tables were published when a relay last looked, so that it notices a table that left the publication
-- and came back in between, or while no relay ran.

-- +goose Up
-- +goose StatementBegin

ALTER TABLE outbox.relay_state
    ADD COLUMN IF NOT EXISTS publication     jsonb,
    ADD COLUMN IF NOT EXISTS publication_xid xid8;
COMMENT ON COLUMN outbox.relay_state.publication IS
    'By which rows of pg_publication and pg_publication_rel the tables were published when the relay last looked: OIDs and xmin. NULL: not known.';
COMMENT ON COLUMN outbox.relay_state.publication_xid IS
    'Every transaction below it was over while the tables were published so: its rows are in the stream. NULL: not known.';

-- +goose StatementEnd
