"""Commands about failed tasks: group them, and run them or any others again."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from conveyor.cli import output
from conveyor.cli.connect import Endpoint, Follow, JobId, Json, OfRun, with_service
from conveyor.cli.output import plain
from conveyor.cli.pairs import ScraperParams, changed_parameters
from conveyor.client import FailureGroup, Failures, Rerun
from conveyor.client.transport import decoded, of_run
from conveyor.errors import RefusedToStart

AGE_FORM = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[smhd])")
LONGEST_TEXT = 120  # characters of what happened
CODE_AT_END = re.compile(r" \([A-Z0-9]+\)$")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Status = Annotated[
    str | None,
    typer.Option(
        help="Only tasks that are pending, processing, successful or failed, with commas "
        "between; the results of the others are inherited [all tasks]."
    ),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option(help="Only tasks that failed for this reason, like blocked; repeatable."),
]
Codes = Annotated[
    list[str] | None,
    typer.Option(help="Only tasks that failed with this code, like RESP001; repeatable."),
]
Hosts = Annotated[list[str] | None, typer.Option(help="Only tasks of this host; repeatable.")]
Tasks = Annotated[list[str] | None, typer.Option(help="Only this task; repeatable.")]
Age = Annotated[
    str | None,
    typer.Option(help="Only tasks scraped before this: an age like 12h or 7d, or a UTC time."),
]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="Repeating the command with the same key makes no new run.")
]


@with_service
def failures(
    service: Endpoint,
    job: JobId,
    *,
    run: OfRun = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many groups at most.")] = 20,
    as_json: Json = False,
) -> None:
    """Group the failed tasks of a job by host, reason and code, the largest group first.

    `conveyor rerun JOB --reason R --code C --host H` runs the tasks of a group again.
    """
    with service.client() as client:
        raw = client.request("GET", *of_run(job, run, "failures"), query={"limit": limit})
    if as_json:
        output.json_line(raw)
        return
    found = decoded(raw, Failures)
    heads = ("tasks", "host", "reason", "code", "what happened", "example")
    output.table(heads, [_row(group) for group in found.groups])
    if not found.failed:
        output.note("No task has failed.")
    elif found.groups_total > len(found.groups):
        rest = found.groups_total - len(found.groups)
        output.note(f"{rest:,} more groups: --limit lists up to 1,000.")


def _row(group: FailureGroup) -> tuple[object, ...]:
    host = "(other hosts)" if group.host is None else group.host
    what = in_a_line(group.title, group.detail)
    return (group.count, host, group.reason, group.code, what, group.example_url or "")


def in_a_line(title: str, detail: str) -> str:
    """The title of an error, and its detail where that says more."""
    said, known = " ".join(detail.split()), CODE_AT_END.sub("", title).rstrip(".")
    if not said.rstrip(".") or said.rstrip(".").lower() == known.lower():
        return title
    begins = said.lower().startswith(known.lower())
    text = said if begins or not title else f"{title}: {said}"
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


@with_service
def rerun(
    service: Endpoint,
    job: JobId,
    *,
    status: Status = None,
    reason: Reasons = None,
    code: Codes = None,
    host: Hosts = None,
    task: Tasks = None,
    older_than: Age = None,
    param: ScraperParams = None,
    idempotency_key: IdempotencyKey = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Run a job again: all its tasks, or those that all given options select.

    The results of the other tasks are inherited. `--param` changes parameters of the scraper for
    the tasks that run again; `--param name=` removes one.
    """
    body = {
        "status": status.split(",") if status is not None else None,
        "reason": reason,
        "code": code,
        "host": host,
        "task_ids": task,
        "scraped_before": moment_of(older_than) if older_than is not None else None,
        "zenrows_params": changed_parameters(param or []),
    }
    given = {name: value for name, value in body.items() if value is not None}
    key = idempotency_key or str(uuid.uuid4())
    with service.repeating_client(key) as client:
        raw = client.request(
            *("POST", "jobs", job, "rerun"), body=given or None, idempotency_key=key
        )
    if not follow:
        _print_rerun(raw, as_json=as_json)
        return
    from conveyor.cli.follow import follow_and_exit, how_to_follow  # noqa: PLC0415 - loads rich

    with output.interruptible(how_to_follow(job)):
        _print_rerun(raw, as_json=as_json)
        follow_and_exit(service, job, decoded(raw, Rerun).latest_run, as_json=as_json)


def moment_of(text: str) -> datetime:
    """The moment of an age or a time."""
    try:
        if age := AGE_FORM.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{UNITS[age["unit"]]: int(age["number"])})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):  # an age may reach back before the year 1
        raise RefusedToStart(
            "--older-than must be an age like 90m, 12h or 7d, or a time like "
            f"2026-01-31T00:00:00Z, got {plain(text)!r}"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _print_rerun(raw: bytes, *, as_json: bool) -> None:
    if as_json:
        output.json_line(raw)
        return
    made = decoded(raw, Rerun)
    output.facts(
        [
            ("job", made.job_id),
            ("run", made.latest_run.run_id),
            ("retried_tasks", made.retried_tasks),
            ("inherited_tasks", made.inherited_tasks),
        ]
    )
