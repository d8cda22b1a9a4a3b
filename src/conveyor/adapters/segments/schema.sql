-- The place of each body. All of it can be rebuilt from the segments.

CREATE TABLE run (
    no INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    UNIQUE (job_id, run_id)
) STRICT;

CREATE TABLE body (
    run INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    claim_no INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (run, task_id, claim_no)
) STRICT, WITHOUT ROWID;

-- `covered`: bytes of the segment whose records are entered here. `live`: bytes of records of bodies.
-- `unerased`: bytes of records of removed bodies that were not erased yet.
CREATE TABLE segment (
    no INTEGER PRIMARY KEY,
    covered INTEGER NOT NULL,
    live INTEGER NOT NULL DEFAULT 0,
    unerased INTEGER NOT NULL DEFAULT 0
) STRICT;
