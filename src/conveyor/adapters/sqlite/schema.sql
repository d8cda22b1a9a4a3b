-- Moments are microseconds since the epoch, in UTC. A `doc` is the whole value as JSON; the
-- columns beside it are what queries need of it.

CREATE TABLE incarnation (
    no         INTEGER PRIMARY KEY,  -- one for each time the folder was opened
    started_at INTEGER NOT NULL,
    seen_at    INTEGER  -- the wall time it noted last
) STRICT;

CREATE TABLE job (
    id      TEXT    NOT NULL PRIMARY KEY,
    caller  TEXT    NOT NULL,
    type    TEXT    NOT NULL,
    status  TEXT    NOT NULL,
    run_id  TEXT    NOT NULL,  -- the latest run
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL,
    fires_at INTEGER  -- when it runs next by itself
) STRICT, WITHOUT ROWID;
CREATE INDEX job_by_caller ON job (caller, id);
CREATE INDEX job_scheduled ON job (caller) WHERE type = 'scheduled' AND status <> 'deleted';
CREATE INDEX job_by_fire ON job (fires_at, id) WHERE fires_at IS NOT NULL;

CREATE TABLE run (
    id      TEXT    NOT NULL PRIMARY KEY,
    job_id  TEXT    NOT NULL,
    live    INTEGER NOT NULL,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX run_by_job ON run (job_id, id);
CREATE INDEX run_live ON run (id) WHERE live = 1;

CREATE TABLE run_change (
    no     INTEGER PRIMARY KEY AUTOINCREMENT,  -- of the run's latest change; never used again
    run_id TEXT    NOT NULL UNIQUE
) STRICT;

CREATE TABLE batch (
    run_id  TEXT    NOT NULL,
    first   INTEGER NOT NULL,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL,
    PRIMARY KEY (run_id, first)
) STRICT, WITHOUT ROWID;

CREATE TABLE deletion (
    id      TEXT    NOT NULL PRIMARY KEY,  -- of the deleted job or run
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE file_input (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX file_input_unused ON file_input (doc ->> 'caller')
    WHERE json_array_length(doc, '$.jobs') = 0;

CREATE TABLE export (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX export_open ON export (doc ->> 'caller')
    WHERE doc ->> 'status' IN ('pending', 'running');
CREATE INDEX export_by_run ON export (doc ->> 'run_id');

CREATE TABLE outbox_event (
    id      TEXT    NOT NULL PRIMARY KEY,
    job_id  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    due_at  INTEGER,  -- null unless it is owed
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_event_by_job ON outbox_event (job_id, id);
CREATE INDEX outbox_event_due ON outbox_event (channel, due_at, id) WHERE due_at IS NOT NULL;

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

CREATE TABLE encryption_keys (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_record (
    caller      TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    status      INTEGER NOT NULL,
    body        BLOB    NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (caller, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_record_by_expiry ON idempotency_record (expires_at);

CREATE TABLE run_no (
    no     INTEGER PRIMARY KEY AUTOINCREMENT,  -- a run's short name below, never used again
    run_id TEXT    NOT NULL UNIQUE,
    open   INTEGER NOT NULL DEFAULT 1,  -- whether its tasks may be claimed
    failure_groups INTEGER NOT NULL DEFAULT 0,  -- how many it has, without `other`
    job_id TEXT,     -- the place of its rows; null in runs of earlier releases
    shards INTEGER,
    v      INTEGER   -- of the format of its rows
) STRICT;

CREATE TABLE task (
    run_no        INTEGER NOT NULL,
    idx           INTEGER NOT NULL,
    id            TEXT    NOT NULL,
    status        INTEGER NOT NULL,  -- 0 pending, 1 processing, 2 successful, 3 failed
    phase         INTEGER NOT NULL,  -- 0 open, 2 successful, 3 failed: what listings filter by
    due_at        INTEGER,
    claim_no      INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    claimed_at    INTEGER,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    url           TEXT    NOT NULL,
    method        TEXT    NOT NULL,
    external_id   TEXT,
    metadata      TEXT,
    params        TEXT,
    body          TEXT,
    locator       TEXT,
    length        INTEGER,
    checksum      TEXT,
    format        TEXT,
    problem       TEXT,
    reason        TEXT,
    source_run_id TEXT,
    content_type  TEXT,     -- of the body, where its site told it
    scraped_at    INTEGER,  -- of an inherited outcome: when its own run settled it
    http_status   INTEGER,  -- of the target, where the gateway passes it on
    duration_ms   INTEGER,  -- of the call that ended the task
    final_url     TEXT,     -- after redirects, if it is another URL
    holder        INTEGER,  -- the incarnation whose claim is the latest; null once that has ended
    spent_credits INTEGER,  -- by all its calls; null if an earlier release made some of them
    spent_nanos   INTEGER,
    PRIMARY KEY (run_no, idx)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_due ON task (run_no, due_at, idx) WHERE status = 0;
CREATE INDEX task_held ON task (run_no, due_at, idx) WHERE status = 1;
CREATE INDEX task_by_phase ON task (run_no, phase, idx);

CREATE TABLE attempt (
    run_no     INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    claim_no   INTEGER NOT NULL,  -- a claim ends once, so it has one line at most
    attempt    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    problem    TEXT,
    credits    INTEGER NOT NULL,
    nanos      INTEGER NOT NULL,
    http_status INTEGER,
    duration_ms INTEGER,
    PRIMARY KEY (run_no, idx, claim_no)
) STRICT, WITHOUT ROWID;

CREATE TABLE counter (
    run_no        INTEGER NOT NULL,
    incarnation   INTEGER NOT NULL,
    successful    INTEGER NOT NULL,
    auth_failed   INTEGER NOT NULL,
    blocked       INTEGER NOT NULL,
    bad_target    INTEGER NOT NULL,
    rate_limited  INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL,
    other         INTEGER NOT NULL,
    credits       INTEGER NOT NULL,
    nanos         INTEGER NOT NULL,
    PRIMARY KEY (run_no, incarnation)
) STRICT, WITHOUT ROWID;

CREATE TABLE failure_group (
    run_no  INTEGER NOT NULL,
    host    TEXT    NOT NULL,  -- empty: `other`, the failures of this reason without a group
    reason  TEXT    NOT NULL,
    code    TEXT    NOT NULL,
    count   INTEGER NOT NULL,
    example INTEGER NOT NULL,  -- index of one of its tasks
    PRIMARY KEY (run_no, host, reason, code)
) STRICT, WITHOUT ROWID;

CREATE TABLE control_message (
    id         TEXT    NOT NULL PRIMARY KEY,
    kind       TEXT    NOT NULL,
    payload    TEXT    NOT NULL,
    due_at     INTEGER,  -- when it may be received; null once it is a dead letter
    deliveries INTEGER NOT NULL DEFAULT 0,
    reason     TEXT,
    dead_lettered_at INTEGER,
    held       INTEGER NOT NULL DEFAULT 0,  -- 1: due_at is the end of a lease
    subject    TEXT    NOT NULL DEFAULT '',  -- of one kind and subject one message is live
    caller     TEXT    NOT NULL DEFAULT '',  -- empty if unknown
    v          INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
CREATE INDEX control_message_due ON control_message (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX control_message_live ON control_message (kind, subject)
    WHERE due_at IS NOT NULL;
CREATE INDEX control_message_group ON control_message (kind, caller, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX control_message_dead ON control_message (dead_lettered_at)
    WHERE dead_lettered_at IS NOT NULL;
