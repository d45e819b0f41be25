-- The programs that used an account since it was connected, for the page of its owner. No row decides where a secret
-- is sent, and none holds one.

CREATE TABLE grant_programs (
    owner BYTEA NOT NULL,
    upstream TEXT NOT NULL,
    program TEXT NOT NULL,
    made BIGINT NOT NULL,
    used BIGINT NOT NULL,
    PRIMARY KEY (owner, upstream, program)
);
CREATE INDEX grant_programs_used ON grant_programs (used);

-- Earlier programs know nothing of the table, and need nothing of it.
INSERT INTO schema_compatibility (version, oldest) VALUES (2, 1);
