ALTER TABLE task ADD COLUMN content_type TEXT;  -- of the body, where its site told it
-- Of an inherited outcome: when its own run settled it. Rows inherited before this column have
-- that time in updated_at.
ALTER TABLE task ADD COLUMN scraped_at INTEGER;
