ALTER TABLE job ADD COLUMN fires_at INTEGER;  -- when it runs next by itself
CREATE INDEX job_by_fire ON job (fires_at, id) WHERE fires_at IS NOT NULL;

CREATE TABLE event (
    id      TEXT    NOT NULL PRIMARY KEY,
    job_id  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    due_at  INTEGER,  -- null once it is not owed any more
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX event_by_job ON event (job_id, id);
CREATE INDEX event_due ON event (channel, due_at, id) WHERE due_at IS NOT NULL;

CREATE TABLE signing_keys (
    id      TEXT    NOT NULL PRIMARY KEY,  -- the caller
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE api_key (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
