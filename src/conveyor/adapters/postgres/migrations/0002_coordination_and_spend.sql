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

-- What all calls for a task cost. The release before this one leaves it null, and a sum with null is
-- null: it is unknown for the tasks that such a process claimed or settled.
ALTER TABLE held ADD COLUMN spent_credits bigint, ADD COLUMN spent_nanos bigint;
ALTER TABLE later ADD COLUMN spent_credits bigint, ADD COLUMN spent_nanos bigint;
ALTER TABLE done ADD COLUMN spent_credits bigint, ADD COLUMN spent_nanos bigint;
