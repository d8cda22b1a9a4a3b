-- The wall clock may be set back while the service is stopped: when it was last seen tells.
ALTER TABLE incarnation ADD COLUMN seen_at INTEGER;
-- A lease ends with its process, a back-off does not.
ALTER TABLE duty ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
UPDATE duty SET held = 1 WHERE deliveries > 0 AND due_at IS NOT NULL;
-- The end of a run is owed by an event with a token of its own.
UPDATE run SET doc = json_remove(doc, '$.sealed_token') WHERE live = 0;
