-- The vault. Columns beside `sealed` only find a row; everything that decides where a secret is sent is sealed.
-- Times are milliseconds since the Unix epoch. No column is ever NULL.

-- Which programs can use this schema: a program of schema number `oldest` or later.
CREATE TABLE schema_compatibility (
    version BIGINT NOT NULL PRIMARY KEY,
    oldest BIGINT NOT NULL
);
INSERT INTO schema_compatibility (version, oldest) VALUES (1, 1);

-- The number of the last change to grants. Its row is locked until the change commits: numbers commit in order.
CREATE TABLE change_counter (
    id BIGINT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL
);
INSERT INTO change_counter (id, number) VALUES (1, 0);

-- What changed, for the other processes; rows are swept after an hour.
CREATE TABLE changes (
    number BIGINT NOT NULL PRIMARY KEY,
    owner BYTEA NOT NULL,
    upstream TEXT NOT NULL,
    made BIGINT NOT NULL
);
CREATE INDEX changes_made ON changes (made);

CREATE TABLE grants (
    owner BYTEA NOT NULL,
    upstream TEXT NOT NULL,
    version BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    lease BYTEA NOT NULL,
    lease_ends BIGINT NOT NULL,
    made BIGINT NOT NULL,
    used BIGINT NOT NULL,
    PRIMARY KEY (owner, upstream)
);
CREATE INDEX grants_used ON grants (used);
CREATE INDEX grants_key ON grants (key_id);

-- The last lists of a principal, kept as long as the grant.
CREATE TABLE kept_lists (
    owner BYTEA NOT NULL,
    upstream TEXT NOT NULL,
    kind TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    made BIGINT NOT NULL,
    PRIMARY KEY (owner, upstream, kind)
);
CREATE INDEX kept_lists_key ON kept_lists (key_id);

-- What authorization servers know this gateway as; the newest of an issuer is used for new grants.
CREATE TABLE registrations (
    issuer TEXT NOT NULL,
    client_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    made BIGINT NOT NULL,
    PRIMARY KEY (issuer, client_id)
);
CREATE INDEX registrations_made ON registrations (issuer, made);
CREATE INDEX registrations_key ON registrations (key_id);

-- Authorizations that wait for their callback.
CREATE TABLE pending (
    state BYTEA NOT NULL PRIMARY KEY,
    owner BYTEA NOT NULL,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    made BIGINT NOT NULL,
    ends BIGINT NOT NULL
);
CREATE INDEX pending_owner ON pending (owner, made);
CREATE INDEX pending_ends ON pending (ends);

-- Documents of upstreams and authorization servers: a cache, public, checked again before a secret follows it.
CREATE TABLE metadata (
    kind TEXT NOT NULL,
    url TEXT NOT NULL,
    body BYTEA NOT NULL,
    made BIGINT NOT NULL,
    ends BIGINT NOT NULL,
    PRIMARY KEY (kind, url)
);
CREATE INDEX metadata_made ON metadata (made);

-- Tokens whose revocation (RFC 7009) is still to be told to their server.
CREATE TABLE revocations (
    id BYTEA NOT NULL PRIMARY KEY,
    key_id TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    tries BIGINT NOT NULL,
    due BIGINT NOT NULL,
    made BIGINT NOT NULL
);
CREATE INDEX revocations_due ON revocations (due);
CREATE INDEX revocations_key ON revocations (key_id);
