-- The order in which runs were last changed. Runs without a row have not changed since this migration.
CREATE TABLE run_change (
    no     INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
    run_id TEXT    NOT NULL UNIQUE
) STRICT;
