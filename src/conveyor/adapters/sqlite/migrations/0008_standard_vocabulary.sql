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
