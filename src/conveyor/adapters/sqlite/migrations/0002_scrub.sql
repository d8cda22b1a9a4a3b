CREATE TABLE scrub (
    id      TEXT    NOT NULL PRIMARY KEY,  -- of the deleted job or run
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
