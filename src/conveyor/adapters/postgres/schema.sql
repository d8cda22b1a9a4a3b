-- A `doc` is the whole value as JSON; the columns beside it are what queries need of it. It is text:
-- `jsonb` would refuse the character U+0000. Ids sort by their bytes, whatever the locale of the
-- database.

CREATE TABLE schema_version (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE job (
    id       text COLLATE "C" PRIMARY KEY,
    caller   text COLLATE "C" NOT NULL,
    type     text             NOT NULL,
    status   text             NOT NULL,
    run_id   text COLLATE "C",  -- the latest run
    fires_at timestamptz,       -- when it runs next by itself
    version  integer          NOT NULL,
    doc      text             NOT NULL
);
CREATE INDEX job_by_caller ON job (caller, id);
CREATE INDEX job_scheduled ON job (caller) WHERE type = 'scheduled' AND status <> 'deleted';
CREATE INDEX job_by_fire ON job (fires_at, id) WHERE fires_at IS NOT NULL;

CREATE SEQUENCE run_change;
CREATE TABLE run (
    id         text COLLATE "C" PRIMARY KEY,
    job_id     text COLLATE "C" NOT NULL,
    caller     text COLLATE "C" NOT NULL,
    live       boolean          NOT NULL,
    deleted    boolean          NOT NULL,
    version    integer          NOT NULL,
    doc        text             NOT NULL,
    -- Of the latest change: its transaction, and a number that orders the changes of one transaction.
    changed_by xid8             NOT NULL DEFAULT pg_current_xact_id(),
    change_no  bigint           NOT NULL DEFAULT nextval('run_change')
);
CREATE INDEX run_by_job ON run (job_id, id);
CREATE INDEX run_live ON run (id) WHERE live;
CREATE INDEX run_by_change ON run (changed_by, change_no);

CREATE TABLE batch (
    run_id  text COLLATE "C" NOT NULL,
    first   bigint           NOT NULL,
    version integer          NOT NULL,
    doc     text             NOT NULL,
    PRIMARY KEY (run_id, first)
);

CREATE TABLE deletion (
    id      text COLLATE "C" PRIMARY KEY,  -- of the deleted job or run
    version integer          NOT NULL,
    doc     text             NOT NULL
);

CREATE TABLE file_input (
    id      text COLLATE "C" PRIMARY KEY,
    caller  text COLLATE "C" NOT NULL,
    unused  boolean          NOT NULL,
    version integer          NOT NULL,
    doc     text             NOT NULL
);
CREATE INDEX file_input_unused ON file_input (caller) WHERE unused;

CREATE TABLE export (
    id      text COLLATE "C" PRIMARY KEY,
    caller  text COLLATE "C" NOT NULL,
    run_id  text COLLATE "C" NOT NULL,
    open    boolean          NOT NULL,
    version integer          NOT NULL,
    doc     text             NOT NULL
);
CREATE INDEX export_open ON export (caller) WHERE open;
CREATE INDEX export_by_run ON export (run_id, id);

CREATE TABLE outbox_event (
    job_id  text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    channel text             NOT NULL,
    due_at  timestamptz,  -- null unless it is owed
    version integer          NOT NULL,
    doc     text             NOT NULL,
    PRIMARY KEY (job_id, id)
);
CREATE INDEX outbox_event_due ON outbox_event (channel, due_at, id) WHERE due_at IS NOT NULL;

CREATE TABLE signing_keys (
    id      text COLLATE "C" PRIMARY KEY,  -- the caller
    version integer          NOT NULL,
    doc     text             NOT NULL
);

CREATE TABLE api_key (
    id      text COLLATE "C" PRIMARY KEY,
    version integer          NOT NULL,
    doc     text             NOT NULL
);

CREATE TABLE encryption_keys (
    id      text COLLATE "C" PRIMARY KEY,
    version integer          NOT NULL,
    doc     text             NOT NULL
);

CREATE TABLE idempotency_record (
    caller      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint bytea            NOT NULL,
    status      integer          NOT NULL,
    body        bytea            NOT NULL,
    expires_at  timestamptz      NOT NULL,
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_record_by_expiry ON idempotency_record (expires_at);

CREATE TABLE control_message (
    id         text COLLATE "C" PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL,
    subject    text COLLATE "C" NOT NULL,  -- of one kind and subject one message is live
    caller     text COLLATE "C" NOT NULL,  -- empty if unknown
    payload    text             NOT NULL,
    v          integer          NOT NULL,
    due_at     timestamptz,  -- when it may be received; null once it is a dead letter
    deliveries integer          NOT NULL DEFAULT 0,
    reason     text,
    dead_lettered_at timestamptz
);
CREATE UNIQUE INDEX control_message_live ON control_message (kind, subject)
    WHERE due_at IS NOT NULL;
CREATE INDEX control_message_group ON control_message (kind, caller, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX control_message_dead ON control_message (id) WHERE dead_lettered_at IS NOT NULL;

CREATE TABLE run_no (
    no     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- a run's short name below
    run_id text COLLATE "C" NOT NULL UNIQUE,
    open   boolean          NOT NULL DEFAULT true,  -- whether its tasks may be claimed
    failure_groups integer  NOT NULL DEFAULT 0,     -- how many it has, without `other`
    job_id text COLLATE "C" NOT NULL,               -- the place of its rows
    shards integer          NOT NULL,
    v      integer          NOT NULL                -- of the format of its rows
);

-- What was asked for. Rows are inserted and deleted, never updated: the state of a task is a row of
-- `held`, `later` or `done`. A task with none of them has never been claimed, and is in a range of
-- `fresh`.
CREATE TABLE task (
    run_no      integer     NOT NULL,
    idx         bigint      NOT NULL,
    name        bytea       NOT NULL,  -- the part of the id behind the index: 12 bytes
    created_at  timestamptz NOT NULL,
    url         text        NOT NULL,
    method      text        NOT NULL,
    external_id text,
    metadata    text,
    params      text,
    body        text,
    PRIMARY KEY (run_no, idx)
);

-- Tasks that were never claimed: those with an index from `next` and below `upto`.
CREATE TABLE fresh (
    run_no integer NOT NULL,
    first  bigint  NOT NULL,
    next   bigint  NOT NULL,
    upto   bigint  NOT NULL,
    PRIMARY KEY (run_no, first)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

-- Tasks under a claim. There is no index on `until`, so that a renewal updates no index.
CREATE TABLE held (
    run_no     integer          NOT NULL,
    idx        bigint           NOT NULL,
    until      timestamptz      NOT NULL,
    claimed_at timestamptz      NOT NULL,
    holder     text COLLATE "C" NOT NULL,
    claim_no   integer          NOT NULL,
    attempts   integer          NOT NULL,
    lost       integer          NOT NULL,
    spent_credits bigint,  -- by all calls; null if the release before made some
    spent_nanos bigint,
    PRIMARY KEY (run_no, idx)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- Tasks that were claimed before and wait for their next claim.
CREATE TABLE later (
    run_no     integer     NOT NULL,
    idx        bigint      NOT NULL,
    due_at     timestamptz NOT NULL,
    claimed_at timestamptz,
    updated_at timestamptz NOT NULL,
    claim_no   integer     NOT NULL,
    attempts   integer     NOT NULL,
    lost       integer     NOT NULL,
    spent_credits bigint,  -- by all calls; null if the release before made some
    spent_nanos bigint,
    PRIMARY KEY (run_no, idx)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX later_due ON later (run_no, due_at, idx);

-- Tasks that ended, with the line of their last attempt, and rows that a rerun inherited.
CREATE TABLE done (
    run_no        integer     NOT NULL,
    idx           bigint      NOT NULL,
    status        smallint    NOT NULL,  -- 0 pending (inherited), 2 successful, 3 failed
    claim_no      integer     NOT NULL,
    attempts      integer     NOT NULL,
    lost          integer     NOT NULL,
    claimed_at    timestamptz,
    updated_at    timestamptz NOT NULL,
    charged       boolean     NOT NULL,  -- whether its last claim was an attempt
    credits       bigint      NOT NULL,  -- of that attempt
    nanos         bigint      NOT NULL,
    holder        text COLLATE "C",      -- of a task that its last claim has failed
    locator       text,
    length        bigint,
    checksum      text,
    format        text,
    content_type  text,
    problem       text,
    reason        text,
    source_run_id text,
    scraped_at    timestamptz,
    http_status   integer,
    duration_ms   bigint,
    final_url     text,
    spent_credits bigint,  -- by all calls; null if the release before made some
    spent_nanos bigint,
    PRIMARY KEY (run_no, idx)
);
CREATE INDEX done_by_status ON done (run_no, status, idx);

-- The lines of all attempts but those in `done`.
CREATE TABLE attempt (
    run_no      integer     NOT NULL,
    idx         bigint      NOT NULL,
    claim_no    integer     NOT NULL,
    attempt     integer     NOT NULL,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    problem     text,
    credits     bigint      NOT NULL,
    nanos       bigint      NOT NULL,
    http_status integer,
    duration_ms bigint,
    PRIMARY KEY (run_no, idx, claim_no)
);

-- The sum of the rows of a run counts. Connections add to different ones, so as not to wait for each
-- other's commits.
CREATE TABLE counter (
    run_no        integer NOT NULL,
    slot          integer NOT NULL,
    successful    bigint  NOT NULL,
    auth_failed   bigint  NOT NULL,
    blocked       bigint  NOT NULL,
    bad_target    bigint  NOT NULL,
    rate_limited  bigint  NOT NULL,
    timeout       bigint  NOT NULL,
    gateway_error bigint  NOT NULL,
    other         bigint  NOT NULL,
    credits       bigint  NOT NULL,
    nanos         bigint  NOT NULL,
    PRIMARY KEY (run_no, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE failure_group (
    run_no  integer          NOT NULL,
    host    text COLLATE "C" NOT NULL,  -- empty: `other`, the failures of this reason without a group
    reason  text COLLATE "C" NOT NULL,
    code    text COLLATE "C" NOT NULL,
    slot    integer          NOT NULL,  -- as in `counter`
    count   bigint           NOT NULL,
    example bigint           NOT NULL,  -- index of one of its tasks
    PRIMARY KEY (run_no, host, reason, code, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Coordination. Its state may be lost at any time, so its tables are unlogged: commits wait for no
-- disk, and after a crash of the server the tables are empty.

-- How many permits of a name a process holds, and how long after `written_at` they expire: `counts[1]`
-- of them after `seconds[1]`, and so on. Only the process writes its rows, each as a whole.
CREATE UNLOGGED TABLE permit (
    name       text COLLATE "C"   NOT NULL,
    holder     text COLLATE "C"   NOT NULL,  -- the incarnation of the process
    write_no   bigint             NOT NULL,  -- of the holder's writes
    written_at timestamptz        NOT NULL,
    seconds    double precision[] NOT NULL,
    counts     integer[]          NOT NULL,
    until      timestamptz        NOT NULL,  -- when the last one expires
    PRIMARY KEY (name, holder)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

CREATE UNLOGGED TABLE bucket (
    name    text COLLATE "C" PRIMARY KEY,
    tokens  double precision NOT NULL,
    at      double precision NOT NULL,  -- when so many were left, in seconds since 1970
    granted boolean          NOT NULL,  -- whether the latest call got one
    full_at double precision NOT NULL   -- from then on it equals a new one
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

CREATE UNLOGGED TABLE cached_value (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea            NOT NULL,
    until timestamptz      NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

CREATE UNLOGGED TABLE notification (
    id      text COLLATE "C" PRIMARY KEY,
    topic   text COLLATE "C" NOT NULL,
    names   text[]           NOT NULL,
    sent_at timestamptz      NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX notification_by_time ON notification (sent_at);

CREATE UNLOGGED TABLE member (
    id    text COLLATE "C" PRIMARY KEY,  -- the incarnation of the process
    doc   text             NOT NULL,
    until timestamptz      NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
