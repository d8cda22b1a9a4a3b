-- What a call said about its page: the status of the target, where the gateway passes it on, the
-- duration of the call, and the URL after redirects, if it is another one. Older rows have none.
ALTER TABLE task ADD COLUMN http_status INTEGER;
ALTER TABLE task ADD COLUMN duration_ms INTEGER;
ALTER TABLE task ADD COLUMN final_url TEXT;
ALTER TABLE attempt ADD COLUMN http_status INTEGER;
ALTER TABLE attempt ADD COLUMN duration_ms INTEGER;

-- Failed tasks by host, reason and code. A run has at most 1,000 groups, and for each reason one
-- more, `other`, without a host, for failures beyond. Those of existing runs are counted here: stored
-- URLs are normalised, so a host ends at the first slash and may follow a user and an at sign.
ALTER TABLE run_no ADD COLUMN failure_groups INTEGER NOT NULL DEFAULT 0;
CREATE TABLE failure_group (
    run_no  INTEGER NOT NULL,
    host    TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    code    TEXT    NOT NULL,
    count   INTEGER NOT NULL,
    example INTEGER NOT NULL,
    PRIMARY KEY (run_no, host, reason, code)
) STRICT, WITHOUT ROWID;
WITH
    authority AS (
        SELECT run_no, idx, reason, problem,
               substr(url, instr(url, '://') + 3,
                      instr(substr(url, instr(url, '://') + 3) || '/', '/') - 1) AS text
          FROM task INDEXED BY task_by_phase
         WHERE run_no IN (SELECT no FROM run_no) AND phase = 3
    ),
    failed AS (
        SELECT run_no, idx, coalesce(reason, 'other') AS reason,
               substr(text, instr(text, '@') + 1, 260) AS host,
               CASE WHEN json_valid(problem) AND json_type(problem, '$.code') = 'text'
                    THEN substr(problem ->> '$.code', 1, 64) ELSE '' END AS code
          FROM authority
    ),
    grouped AS (
        SELECT run_no, host, reason, code, count(*) AS count, min(idx) AS example
          FROM failed GROUP BY run_no, host, reason, code
    ),
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY run_no ORDER BY example) <= 1000 AS fits
          FROM grouped
    )
INSERT INTO failure_group (run_no, host, reason, code, count, example)
SELECT run_no, iif(fits, host, ''), reason, iif(fits, code, 'other'), sum(count), min(example)
  FROM ranked GROUP BY 1, 2, 3, 4;
UPDATE run_no SET failure_groups =
       (SELECT count(*) FROM failure_group WHERE run_no = no AND host <> '');
