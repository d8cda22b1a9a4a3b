-- The incarnation that holds a task: a claim is fenced by its number and by its holder.
ALTER TABLE task ADD COLUMN holder INTEGER;
