-- The application's own tables, as far as the example's rules look at them.

CREATE TABLE users (
    id       bigint PRIMARY KEY,
    may_read boolean NOT NULL DEFAULT true
);

CREATE TABLE posts (
    id         bigint PRIMARY KEY,
    author_id  bigint NOT NULL,
    title      text NOT NULL,
    publish_at timestamptz NOT NULL,
    deleted_at timestamptz
);

CREATE TABLE followers (
    author_id bigint NOT NULL,
    user_id   bigint NOT NULL REFERENCES users,
    PRIMARY KEY (author_id, user_id)
);
