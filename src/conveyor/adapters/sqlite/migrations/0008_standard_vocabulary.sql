-- A run has a number in the task tables: the tables and columns say so.
ALTER TABLE shelf RENAME TO run_no;
ALTER TABLE task RENAME COLUMN shelf TO run_no;
ALTER TABLE attempt RENAME COLUMN shelf TO run_no;
ALTER TABLE counter RENAME COLUMN shelf TO run_no;
