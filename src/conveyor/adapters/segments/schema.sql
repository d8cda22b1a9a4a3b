-- Where each body lies. All of it can be made again from the segments.

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

-- `covered`: bytes of the segment whose records are known here. `live`: bytes of records of bodies.
-- `untidy`: bytes of records of bodies that are no more, and have not been seen to.
CREATE TABLE segment (
    no INTEGER PRIMARY KEY,
    covered INTEGER NOT NULL,
    live INTEGER NOT NULL DEFAULT 0,
    untidy INTEGER NOT NULL DEFAULT 0
) STRICT;
