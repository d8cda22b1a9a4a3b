-- Encryption keys that processes share, wrapped by a root key.
CREATE TABLE encryption_keys (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
