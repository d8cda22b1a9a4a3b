-- Where the rows of a run are stored, and in which format: fixed when its first rows are written.
ALTER TABLE run_no ADD COLUMN job_id TEXT;
ALTER TABLE run_no ADD COLUMN shards INTEGER;
ALTER TABLE run_no ADD COLUMN v INTEGER;
-- Messages of a newer version are left to newer processes.
ALTER TABLE control_message ADD COLUMN v INTEGER NOT NULL DEFAULT 1;
