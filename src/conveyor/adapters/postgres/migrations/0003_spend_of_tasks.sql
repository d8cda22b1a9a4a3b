-- What all calls for a task cost. The release before this one leaves it null, and a sum with null is
-- null: it is unknown for the tasks that such a process claimed or settled.
ALTER TABLE held ADD COLUMN spent_credits bigint, ADD COLUMN spent_nanos bigint;
ALTER TABLE later ADD COLUMN spent_credits bigint, ADD COLUMN spent_nanos bigint;
ALTER TABLE done ADD COLUMN spent_credits bigint, ADD COLUMN spent_nanos bigint;
