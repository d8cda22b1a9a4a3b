-- What a call said about its page: the status of the target, where the gateway passes it on, the
-- duration of the call, and the URL after redirects, if it is another one. Older rows have none.
ALTER TABLE task ADD COLUMN http_status INTEGER;
ALTER TABLE task ADD COLUMN duration_ms INTEGER;
ALTER TABLE task ADD COLUMN final_url TEXT;
ALTER TABLE attempt ADD COLUMN http_status INTEGER;
ALTER TABLE attempt ADD COLUMN duration_ms INTEGER;
