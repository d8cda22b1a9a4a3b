-- A run has a number in the task tables: the tables and columns say so.
ALTER TABLE shelf RENAME TO run_no;
ALTER TABLE task RENAME COLUMN shelf TO run_no;
ALTER TABLE attempt RENAME COLUMN shelf TO run_no;
ALTER TABLE counter RENAME COLUMN shelf TO run_no;

-- The control queue: messages with a payload, some of them dead letters.
ALTER TABLE duty RENAME TO control_message;
ALTER TABLE control_message RENAME COLUMN about TO payload;
ALTER TABLE control_message RENAME COLUMN buried_at TO dead_lettered_at;
DROP INDEX duty_due;
DROP INDEX duty_live;
DROP INDEX duty_line;
DROP INDEX duty_buried;
CREATE INDEX control_message_due ON control_message (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX control_message_live ON control_message (kind, subject)
    WHERE due_at IS NOT NULL;
CREATE INDEX control_message_group ON control_message (kind, caller, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX control_message_dead ON control_message (dead_lettered_at)
    WHERE dead_lettered_at IS NOT NULL;

-- Encrypted credentials.
UPDATE job SET doc = json_remove(
    json_set(doc, '$.encrypted_key', doc ->> 'sealed_key'), '$.sealed_key')
 WHERE doc ->> 'sealed_key' IS NOT NULL;
UPDATE run SET doc = json_remove(
    json_set(doc, '$.encrypted_token', doc ->> 'sealed_token'), '$.sealed_token')
 WHERE doc ->> 'sealed_token' IS NOT NULL;
UPDATE event SET doc = json_remove(
    json_set(doc, '$.encrypted_token', doc ->> 'sealed_token'), '$.sealed_token')
 WHERE doc ->> 'sealed_token' IS NOT NULL;
UPDATE api_key SET doc = json_remove(
    json_set(doc, '$.encrypted_gateway_key', doc ->> 'sealed_gateway_key'), '$.sealed_gateway_key')
 WHERE json_type(doc, '$.sealed_gateway_key') IS NOT NULL;
UPDATE signing_keys SET doc = json_remove(
    json_set(doc, '$.active.encrypted_secret', doc ->> '$.active.sealed_secret'),
    '$.active.sealed_secret')
 WHERE doc ->> '$.active.sealed_secret' IS NOT NULL;
UPDATE signing_keys SET doc = json_remove(
    json_set(doc, '$.candidate.encrypted_secret', doc ->> '$.candidate.sealed_secret'),
    '$.candidate.sealed_secret')
 WHERE doc ->> '$.candidate.sealed_secret' IS NOT NULL;

-- Idempotency records.
ALTER TABLE replay RENAME TO idempotency_record;
DROP INDEX replay_by_expiry;
CREATE INDEX idempotency_record_by_expiry ON idempotency_record (expires_at);

-- A delete stores a deletion, which a purge message works off.
ALTER TABLE scrub RENAME TO deletion;
UPDATE control_message SET kind = 'purge' WHERE kind = 'scrub';

-- What one caller has under way is read at once, its scheduled jobs among it.
CREATE INDEX job_scheduled ON job (caller) WHERE type = 'scheduled' AND status <> 'deleted';

-- File inputs and source lists: pinned -> source_list, kind -> format, packed -> compressed.
UPDATE job SET doc = json_remove(
    json_set(doc, '$.pinned.spec.format', doc ->> '$.pinned.spec.kind'), '$.pinned.spec.kind')
 WHERE doc ->> '$.pinned.spec.kind' IS NOT NULL;
UPDATE job SET doc = json_remove(
    json_set(doc, '$.pinned.compressed', json('true')), '$.pinned.packed')
 WHERE doc ->> '$.pinned.packed';
UPDATE job SET doc = json_remove(
    json_set(doc, '$.pinned.file_input_id', doc ->> '$.pinned.input_id'), '$.pinned.input_id')
 WHERE doc ->> '$.pinned.input_id' IS NOT NULL;
UPDATE job SET doc = json_remove(json_set(doc, '$.source_list', doc -> '$.pinned'), '$.pinned')
 WHERE doc -> '$.pinned' IS NOT NULL;
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.pinned.spec.format', doc ->> '$.pinned.spec.kind'), '$.pinned.spec.kind')
 WHERE doc ->> '$.pinned.spec.kind' IS NOT NULL;
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.pinned.compressed', json('true')), '$.pinned.packed')
 WHERE doc ->> '$.pinned.packed';
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.pinned.file_input_id', doc ->> '$.pinned.input_id'), '$.pinned.input_id')
 WHERE doc ->> '$.pinned.input_id' IS NOT NULL;
UPDATE batch SET doc = json_remove(json_set(doc, '$.source_list', doc -> '$.pinned'), '$.pinned')
 WHERE doc -> '$.pinned' IS NOT NULL;
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.source_run_id', doc ->> '$.source'), '$.source');
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.position.columns', doc -> '$.position.places'), '$.position.places')
 WHERE doc -> '$.position.places' IS NOT NULL;
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.position.single_line_until', doc -> '$.position.flat_until'),
    '$.position.flat_until')
 WHERE doc -> '$.position.flat_until' IS NOT NULL;
UPDATE batch SET doc = json_remove(
    json_set(doc, '$.position.blank_lines', doc -> '$.position.blank'), '$.position.blank')
 WHERE doc -> '$.position.blank' IS NOT NULL;
UPDATE file_input SET doc = json_remove(
    json_set(doc, '$.spec.format', doc ->> '$.spec.kind'), '$.spec.kind');

-- The outbox: events for task tokens are on the channel of Step Functions. An event that has ended
-- keeps no token, given up or not: nothing sends it again.
DROP INDEX event_by_job;
DROP INDEX event_due;
ALTER TABLE event RENAME TO outbox_event;
CREATE INDEX outbox_event_by_job ON outbox_event (job_id, id);
CREATE INDEX outbox_event_due ON outbox_event (channel, due_at, id) WHERE due_at IS NOT NULL;
UPDATE outbox_event SET channel = 'step_functions', doc = json_set(doc, '$.channel', 'step_functions')
 WHERE channel = 'task_token';
UPDATE outbox_event SET doc = json_remove(doc, '$.encrypted_token') WHERE due_at IS NULL;
