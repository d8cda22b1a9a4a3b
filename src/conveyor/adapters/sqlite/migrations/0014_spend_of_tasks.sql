-- What all calls for a task cost. It is unknown, and stays null, for rows that exist already.
ALTER TABLE task ADD COLUMN spent_credits INTEGER;
ALTER TABLE task ADD COLUMN spent_nanos INTEGER;
