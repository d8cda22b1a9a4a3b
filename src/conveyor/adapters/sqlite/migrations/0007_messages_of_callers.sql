-- Of one kind and subject at most one message is live, and each says whose it is.
ALTER TABLE duty ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE duty ADD COLUMN caller TEXT NOT NULL DEFAULT '';
UPDATE duty SET subject = CASE kind
    WHEN 'ingest' THEN coalesce(about ->> 'run_id', '') || '/' || coalesce(about ->> 'first', '')
    ELSE coalesce(about ->> 'id', id) END;
UPDATE duty SET caller = coalesce(CASE kind
    WHEN 'ingest' THEN (SELECT doc ->> 'caller' FROM run WHERE run.id = about ->> 'run_id')
    WHEN 'scrub' THEN coalesce(
        (SELECT caller FROM job WHERE job.id = about ->> 'id'),
        (SELECT doc ->> 'caller' FROM run WHERE run.id = about ->> 'id'))
    WHEN 'export' THEN (SELECT doc ->> 'caller' FROM export WHERE export.id = about ->> 'id')
    END, '');
DELETE FROM duty WHERE due_at IS NOT NULL AND EXISTS (
    SELECT 1 FROM duty AS other WHERE other.kind = duty.kind AND other.subject = duty.subject
       AND other.due_at IS NOT NULL AND other.id > duty.id);
CREATE UNIQUE INDEX duty_live ON duty (kind, subject) WHERE due_at IS NOT NULL;
CREATE INDEX duty_line ON duty (kind, caller, due_at) WHERE due_at IS NOT NULL;

-- What one caller has open, counted before it may have more.
CREATE INDEX file_input_unused ON file_input (doc ->> 'caller')
    WHERE json_array_length(doc, '$.jobs') = 0;
CREATE INDEX export_open ON export (doc ->> 'caller')
    WHERE doc ->> 'status' IN ('pending', 'running');
