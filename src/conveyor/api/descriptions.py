"""A sentence for every field and parameter of the API, for its description and its page."""

from typing import Any

from conveyor.steps.read import MOST_READS, READ_AT_ONCE

Sentences = dict[str, str]

# Fields that mean the same wherever they occur.
COMMON: Sentences = {
    "job_id": "The id of the job.",
    "run_id": "The id of the run.",
    "task_id": "The id of the task. Reruns keep it, unless they read the list of the job again; "
    "each run by a schedule has new ones.",
    "export_id": "The id of the export.",
    "event_id": "The id of the event.",
    "file_input_id": "The id of the file input.",
    "created_at": "When it was created, in UTC.",
    "updated_at": "When it last changed, in UTC.",
    "expires_at": "When it expires, in UTC.",
    "started_at": "When it began, in UTC.",
    "ended_at": "When it ended, in UTC.",
    "next_cursor": "The `cursor` of the next page; null on the last one.",
    "latest_run": "The newest run of the job that is not deleted.",
    "stats": "How many tasks are done, and what they cost.",
    "spend": "What the gateway charged.",
    "waiting": "Why no task of the run starts, although it is live; absent if nothing is in the way.",
    "ingest_status": "Whether the list of the run is still being read: `pending` or `done`.",
    "pause_state": "`active`, or `paused` while no further task starts.",
    "webhook": "Where the end of each run is reported.",
    "schedule": "When the job runs by itself.",
    "schedule_state": "`active`, or `paused` while the job does not run by itself.",
    "external_id": "Your own id for it, shown wherever it is.",
    "metadata": "Your own data for it, shown wherever it is and otherwise unused.",
    "zenrows_params": "Parameters of the scraper, by name.",
    "max_inflight": "How many tasks of the job are in flight at most.",
    "max_per_host": "How many tasks of the job are in flight for one host at most.",
    "retries": "How often a task is tried again after an attempt that may succeed later.",
    "result_ttl_days": "For how many days results are kept.",
    "inherited_tasks": "Tasks whose result comes from an earlier run.",
    "accepted_tasks": "How many tasks the call added; 0 if they are read from a list later.",
    "kid": "The id of the signing key.",
    "attempts": "How many attempts ended. Calls that are not attempts, such as those that met a rate "
    "limit, are left out.",
    "http_status": "The status of the target, where the gateway passes it on.",
    "duration_ms": "Milliseconds from the request to the gateway to the end of its response.",
    "elapsed_ms": "Milliseconds that the delivery took.",
    "status_code": "The status that the receiver answered with; absent if it did not answer.",
}

FIELDS: dict[str, Sentences] = {
    "WireProblem": {
        "type": "A URL that identifies the kind of problem.",
        "title": "The kind of problem in a few words.",
        "status": "The HTTP status of the response.",
        "code": "The kind of problem as a stable code: branch on it.",
        "detail": "What is wrong in this case.",
        "instance": "The path of the request, or of what the problem is about.",
        "field": "The field or parameter that is at fault.",
        "invalid_tasks": "Every task of the request that is not valid, with its index and the reason.",
        "gateway_request_id": "The gateway's id of the request, for its support.",
    },
    "Schedule": {
        "at": "Run once, at this local time of `timezone`, written as `2026-12-01T06:00:00`.",
        "rate": "Run again and again, at this interval.",
        "calendar": "Run at these hours of these days.",
        "timezone": "The time zone of the times, such as `Europe/Berlin`; required with `at`, "
        "`calendar` and `cron`, without effect on `rate`.",
        "cron": "Run by a line of cron with five fields.",
    },
    "Rate": {
        "every": "How many units lie between two runs.",
        "unit": "The unit of the interval.",
    },
    "Calendar": {
        "times_of_day": "Full hours at which the job runs, such as `06:00`.",
        "cadence": "The days on which the job runs: exactly one of the three kinds.",
    },
    "Cadence": {
        "daily": "Every day.",
        "weekly": "Some days of every week.",
        "monthly": "Some days of every month.",
    },
    "Weekly": {"days": "The days of the week."},
    "Monthly": {"days": "The days of the month; a month without a day leaves it out."},
    "WireSubmitted": {"status": "`open` while tasks can be added, else `closed`."},
    "WireRun": {
        "run_sequence": "1 for the first run of the job, then one more for each run.",
        "status": "How far the run is: `pending` means that all its tasks are done and more may come.",
        "trigger": "What began the run: `manual` for a call, `scheduled` for its schedule.",
        "last_batch_received": "Whether no more tasks can be added.",
        "failure_reason": "Why the whole run failed.",
        "failure_detail": "What the gateway said when the whole run failed.",
        "ingest_errors": "How many rows of the list are not tasks.",
        "ingest_error": "What is wrong with the list as a whole.",
        "cut_short": "Whether the run has fewer rows than its list.",
    },
    "WireStats": {
        "total": "How many tasks the run has.",
        "completed": "How many tasks are done: `successful` and `failed` together.",
        "successful": "How many tasks have a result.",
        "failed": "How many tasks were given up.",
        "spend": "What all calls of the run cost; inherited results cost nothing.",
        "failure_reasons": "How many tasks failed for each reason that occurred.",
        "in_flight": "How many tasks are with the gateway or claimed ahead by a worker, so that it may "
        "exceed `max_inflight`; up to 10,000, of a live run, where the engine can tell.",
        "waiting_for_retry": "How many tasks were tried and wait for their next attempt, up to "
        "10,000; of a live run, where the engine can tell.",
    },
    "WireSpend": {
        "credits": "Credits of the account.",
        "cost": "Dollars.",
    },
    "WireWaiting": {
        "reason": "What the run waits for.",
        "since": "Since when it has waited, in UTC.",
        "detail": "What is wrong, and who can repair it.",
        "next_attempt_at": "When the next task is tried; absent if that is unknown.",
    },
    "WireWebhook": {
        "url": "The URL that events are sent to.",
        "signature": "Whether deliveries are signed.",
        "disabled_at": "When the webhook was turned off because its receiver answered 410 Gone.",
    },
    "Submission": {
        "type": "Whether the job runs once, or by a schedule.",
        "status": "`open` if more tasks will be added.",
        "tasks": "The tasks, unless they come from a file input or are added later.",
        "name": "What the job is called in listings.",
        "file_input_id": "The uploaded list that has the tasks.",
        "on_invalid": "Whether rows of the list that are not tasks are skipped, or end the run.",
        "schedule": "When the job runs, if its type is `scheduled`.",
        "webhook": "Where to report the end of each run.",
        "async": "Whether to answer with 202 and write the tasks in the background.",
        "step_functions": "The state of Step Functions that waits for the run.",
    },
    "TaskInput": {
        "url": "The page to scrape, on http or https.",
        "method": "`GET`, or `POST` to send a body.",
        "body": "With POST only: any JSON, at most 16 KiB and 32 levels.",
        "zenrows_params": "Parameters of the scraper for this task, before those of the job.",
    },
    "NewWebhook": {
        "url": "A URL on https with public addresses only.",
        "signature": "Whether to sign deliveries; false by default.",
    },
    "TaskToken": {
        "task_token": "The task token of the state that waits.",
        "heartbeat_seconds": "How often to tell the state that the run is live.",
    },
    "WireFileInput": {"upload": "How to upload the list."},
    "WireUpload": {
        "url": "The signed URL to upload to, without an API key.",
        "headers": "Headers that the upload must have.",
        "method": "The method of the upload.",
    },
    "ListForm": {
        "type": "The format of the list.",
        "csv": "How a CSV list is written.",
        "size": "The bytes of the file; an upload of another length is then refused.",
    },
    "CsvForm": {
        "fields": "Which columns have what.",
        "delimiter": "The character between two fields; a comma by default.",
        "quote": "The character around a field that has a delimiter; a double quote by default.",
        "header": "Whether the first row has the names of the columns.",
    },
    "CsvFields": {
        "url": "The column of the URL: its name, or its number from 0 if there is no header.",
        "external_id": "The column of your own id, by name or number.",
    },
    "WireJobs": {"jobs": "The jobs of the page, newest first."},
    "WireJob": {
        "type": "`regular`, or `scheduled` if it runs by itself.",
        "status": "`open` while tasks can be added, then `closed`, and `deleted`.",
        "format": "The format of its results; empty for a deleted job.",
        "next_scheduled_run": "When it runs next by itself; null if it does not.",
        "schedule_pause_reason": "Why the service paused the schedule itself.",
        "skipped_fires": "How often it was not run because the run before was still live.",
        "last_skipped_at": "When that last happened, in UTC.",
        "name": "What the job is called.",
    },
    "WireJobsOfCaller": {"jobs": "The jobs of the page, newest first, as operators see them."},
    "WireAdded": {"job_status": "`open` while tasks can be added, else `closed`."},
    "Addition": {
        "tasks": "The tasks to add.",
        "last_batch": "Whether these are the last tasks: the job is then closed.",
    },
    "WireRerun": {
        "status": "The status of the job.",
        "latest_run": "The new run.",
        "rerun_of": "The run whose tasks it repeats.",
        "retried_tasks": "How many tasks are scraped again.",
        "inherited_tasks": "How many tasks are not: they keep what the earlier run has.",
    },
    "RerunBody": {
        "status": "Only tasks of these statuses.",
        "reason": "Only tasks that failed for these reasons.",
        "code": "Only tasks that failed with these codes.",
        "host": "Only tasks of these hosts.",
        "task_ids": "Only these tasks.",
        "scraped_before": "Only tasks whose result is older.",
        "zenrows_params": "Parameters that replace those of the same name, of the job and of the "
        "task, for the tasks that are scraped again; null removes one. These tasks keep the "
        "changes in later reruns.",
    },
    "WireRuns": {"runs": "The runs of the page, newest first."},
    "WireProgress": {
        "status": "The status of the run.",
        "rate": "Tasks done a second, over the last 10 s; null after a first reading.",
        "eta_seconds": "Seconds until the run is done at that rate; null if that is unknown.",
    },
    "WireBadRow": {
        "line": "The line of the list, from 1.",
        "ordinal": "The row of the list, from 0, without blank lines and comments.",
        "reason": "Why the row is not a task.",
        "value": "The beginning of the row.",
    },
    "WireResults": {"results": "The rows of the page, in the order of the tasks."},
    "WireResult": {
        "run_id": "The run that the row belongs to.",
        "url": "The URL as it was submitted.",
        "status": "How far the task is; `expired` if its result is no longer kept.",
        "result_url": "A signed link to the result, for a limited time; null if there is none.",
        "method": "`POST` if a body was sent; absent for `GET`.",
        "type": "The format of the result.",
        "error": "The problem that the task failed with.",
        "source_run_id": "The earlier run that an inherited result comes from.",
        "scraped_at": "When the earlier run scraped an inherited result, in UTC.",
        "content_type": "The content type of the result: as the site labelled the page, where the gateway passes that on, "
        "else that of its format.",
        "size": "The bytes of the result.",
        "final_url": "The URL after redirects, if it is another one.",
        "credits": "The credits that all calls of the task cost, in the run that paid them; absent if "
        "some were made before this was recorded.",
        "cost": "The same in dollars.",
    },
    "WireFailures": {
        "failed": "How many tasks of the run failed.",
        "groups": "The groups, the largest first.",
        "groups_total": "How many groups there are, also beyond `limit`.",
    },
    "WireFailureGroup": {
        "host": "The host of the tasks; absent from a group of what has no group of its own.",
        "reason": "Why the tasks failed.",
        "code": "The code that they failed with.",
        "count": "How many tasks are in the group.",
        "title": "The problem of the example in a few words.",
        "detail": "What the problem of the example says.",
        "example_task_id": "One of the tasks.",
        "example_url": "The URL of that task.",
    },
    "WireTimeline": {
        "interval_seconds": "How long each interval is.",
        "intervals": "The intervals, from that in which the first task ended; none before that.",
        "until": "Where the timeline ends: when the last task ended, or the time of the reading "
        "while the run is live.",
        "estimated": "Whether the intervals were estimated from a sample of the rows. The sums are "
        "exact.",
        "rows": "How many rows of ended tasks were read.",
    },
    "WireInterval": {
        "successful": "How many tasks succeeded in it.",
        "failed": "How many tasks failed in it.",
    },
    "WireHistory": {"events": "The attempts that have ended, in the order in which they ended."},
    "WireAttempt": {
        "attempt": "The number of the attempt, from 1.",
        "spend": "What the attempt cost.",
        "error": "Why the attempt has no result; absent if it has one.",
    },
    "WireExportStarted": {"status": "How far the export is."},
    "WireExport": {
        "status": "How far the export is.",
        "error": "Why it failed.",
        "download_url": "A signed link to the file, once it is complete.",
    },
    "ScheduleTurn": {"schedule_state": "Whether the job should run by itself."},
    "WebhookSetting": {
        "url": "A URL on https with public addresses only.",
        "signature": "Whether to sign deliveries.",
    },
    "WireEvents": {"events": "The events of the page, newest first."},
    "WireEvent": {
        "event_type": "What happened.",
        "run_id": "The run that it happened to.",
        "occurred_at": "When it happened, in UTC.",
        "status": "Whether it was delivered, waits, or was given up.",
        "attempts": "The deliveries so far.",
        "next_attempt_at": "When it is delivered next; absent if it is not.",
    },
    "WireDelivery": {
        "attempt": "The number of the delivery, from 1.",
        "error": "Why the delivery failed.",
    },
    "WireTested": {
        "delivered": "Whether the receiver accepted the test event.",
        "error": "Why it did not.",
    },
    "WireKeys": {
        "active": "The key that signs.",
        "candidate": "The key that will sign once the rotation is finished.",
    },
    "WireNewKey": {"secret": "The secret of the key, shown this once."},
    "WireKeyInUse": {"active_kid": "The id of the key that signs now."},
    "WireIdentity": {
        "caller": "Whose jobs the key sees.",
        "scopes": "What the key allows.",
        "has_default_key": "Whether any key will do, such as `my-key`: under `conveyor dev` with "
        "the mock gateway or `direct:`, which know no accounts.",
    },
    "WireCallers": {"callers": "The callers of the page."},
    "WireCaller": {
        "caller": "The name of the caller.",
        "active_keys": "How many API keys of the caller are valid.",
        "last_used_at": "When one of them was last used, in UTC.",
        "live_runs": "How many runs of the caller are live.",
        "open_tasks": "How many tasks of these runs are not done.",
    },
    "WireLiveRuns": {"runs": "The live runs of the page."},
    "WireLiveRun": {
        "caller": "Whose run it is.",
        "job_name": "What its job is called.",
        "run": "The run.",
    },
    "WireDeadLetters": {"dead_letters": "The dead letters of the page."},
    "WireDeadLetter": {
        "message_id": "The id of the message.",
        "kind": "What the message asks for.",
        "payload": "What the message is about.",
        "reason": "Why the message was given up.",
        "dead_lettered_at": "When the message was given up, in UTC.",
    },
    "WireProcesses": {"processes": "The live processes."},
    "WireProcess": {
        "process_id": "The id of the process, which is new at each start.",
        "role": "What the process does.",
        "host": "The machine of the process.",
        "version": "The release of the process.",
    },
    "WireEngines": {
        "engines": "The engines, one for each kind of state.",
        "disk_free": "Free bytes on the disk of the data folder, where an engine is in it.",
    },
    "WireEngine": {
        "holds": "The kind of state that the engine stores.",
        "engine": "The scheme of its URL.",
        "available": "Whether the engine answers.",
        "elapsed_ms": "Milliseconds that one small read took.",
        "error": "Why the engine does not answer.",
    },
}

ROWS_FOUND = (
    f" A call looks at {MOST_READS * READ_AT_ONCE:,} rows at most: with this parameter a page may"
    " have fewer rows than `limit`, even none, while `next_cursor` is set."
)
# Parameters of queries.
QUERIES: Sentences = {
    "limit": "At most this many items are listed.",
    "cursor": "The `next_cursor` of the page before; without it, the first page is listed.",
    "status": "The call is limited to items of this status.",
    "host": "Only rows of these hosts are listed. Separate several by commas." + ROWS_FOUND,
    "reason": "Only rows that failed for these reasons are listed. Separate several by commas."
    + ROWS_FOUND,
    "code": "Only rows that failed with these codes are listed. Separate several by commas."
    + ROWS_FOUND,
    "type": "Only jobs of this type are listed.",
    "caller": "Only runs of this caller are listed.",
    "name": "Only jobs whose name or external id contains this text are listed.",
}
# Parameters of paths and headers.
PARAMETERS: Sentences = {
    "job": "The id of the job.",
    "run": "The id of the run.",
    "task": "The id of the task.",
    "export": "The id of the export.",
    "event": "The id of the event.",
    "caller": "The name of the caller.",
    "message": "The id of the message.",
    "Idempotency-Key": "A key of your choice that makes the call safe to repeat for 24 hours.",
    "Last-Event-ID": "The id of the last event that you got, to continue after it.",
    "Conveyor-Step-Functions": "The task token of a state of Step Functions that waits for the run.",
}

# What the calls of a group are for, in the order of the page.
GROUPS: Sentences = {
    "Jobs": "Submit tasks, see how far they are, and end or repeat them.",
    "Runs": "Each time that a job is carried out, with live progress.",
    "Results": "Pages, failures and the history of each task.",
    "Exports": "All results of a run as one file.",
    "Lists": "Upload tasks as a file, and see which rows of it are not tasks.",
    "Schedules": "Jobs that run by themselves.",
    "Webhooks": "Receive an event when a run ends, and verify its signature.",
    "Operators": "All callers, live runs, dead letters, processes and engines, for keys that allow it.",
}
# Part of a path -> the group of its calls; the first that fits.
PARTS: Sentences = {
    "operator": "Operators",
    "schedule": "Schedules",
    "webhook": "Webhooks",
    "hmac": "Webhooks",
    "job_inputs": "Lists",
    "ingest_errors": "Lists",
    "exports": "Exports",
    "results": "Results",
    "failures": "Results",
    "content": "Results",
    "history": "Results",
    "runs": "Runs",
    "events": "Runs",
    "timeline": "Runs",
}
INTRODUCTION = (
    "A durable inbox for scrape jobs. Speaks the ZenRows Batch API.\n\n"
    "Every call needs an API key in the header `X-API-Key`, never in the URL. By default (`auth ="
    " dev` or `forward`) it is the key of your account at the gateway, and the service sends it"
    " there; any key will do where the gateway has no accounts, such as the mock gateway. With"
    " `auth = keys` it is a key that the operator creates with `conveyor keys create`; a read-only"
    " key can make GET calls only.\n\n"
    "Errors are `application/problem+json` with a stable `code`. A call that was answered with 5xx"
    " may be repeated, with the same `Idempotency-Key` if it creates something."
)


FIELDS["WireJobOfCaller"] = FIELDS["WireJob"]


def group_of(path: str) -> str:
    """The group of the calls of a path."""
    parts = path.split("/")
    return next((group for part, group in PARTS.items() if part in parts), "Jobs")


def described(schemas: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add its sentence to every field that has one."""
    for name, schema in schemas.items():
        for field, shape in schema.get("properties", {}).items():
            if sentence := FIELDS.get(name, {}).get(field) or COMMON.get(field):
                schema["properties"][field] = {**shape, "description": sentence}
    return schemas
