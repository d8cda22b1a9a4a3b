CREATE TABLE file_input (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE export (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX export_by_run ON export (doc ->> 'run_id');
