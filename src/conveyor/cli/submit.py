"""`conveyor submit`: a list from a file, in one call or uploaded."""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, cast

import msgspec
import typer

from conveyor.cli import output
from conveyor.cli.connect import (
    Endpoint,
    Follow,
    Json,
    with_options,
    with_service,
)
from conveyor.cli.hints import Advised, explained
from conveyor.cli.output import plain
from conveyor.cli.pairs import Labels, ScraperParams, labels, parameters
from conveyor.cli.schedules import At, Cron, Every, Timezone, schedule_of
from conveyor.cli.task_files import (
    MOST_NAMED,
    MOST_TASKS,
    SEE_COLUMNS,
    SKIP,
    ListedTask,
    ListFile,
    UnusableList,
    list_name,
    open_list,
)
from conveyor.client import ApiError, Conveyor, Patience, Run, SubmittedJob, UnreachableError
from conveyor.client.models import FileFormat
from conveyor.client.transport import decoded
from conveyor.errors import ConveyorError, IdempotencyKeyConflict, RefusedToStart

TIMES_SENT = 2
LONGEST_NAME = 100
STANDARD_INPUT = "-"
SHARE = re.compile(r"(?P<percent>[0-9]{1,3}(\.[0-9]{1,3})?)%|(?P<number>[0-9]{1,9})", re.ASCII)
TASK_INDEX = re.compile(r"\btasks\[(?P<index>[0-9]{1,9})\]", re.ASCII)
TAB = {"tab", "\\t"}

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A URL on each line; .ndjson or .jsonl with a task on each line; .csv with a `url` "
        "column; or - for standard input. `submit` also takes .gz and .zst.",
    ),
]
MaxInflight = Annotated[int | None, typer.Option(help="Tasks in flight at a time [100].")]
MaxPerHost = Annotated[
    int | None, typer.Option(help="Tasks in flight to one host at a time [no limit].")
]
Retries = Annotated[int | None, typer.Option(help="Retries of a task after its first attempt [3].")]
ResultTtlDays = Annotated[int | None, typer.Option(help="Days for which results are kept [14].")]
StaysOpen = Annotated[bool, typer.Option("--open", help="Keep the job open for `conveyor add`.")]
Again = Annotated[
    str | None,
    typer.Option(help="Repeating the command with the same key and list makes no new job."),
]
MaxFailed = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="With --follow: exit with 4 if more tasks failed than this, like 5% or 20.",
    ),
]
BadLines = Annotated[
    Literal["skip", "fail"] | None,
    typer.Option(help="What to do about bad lines: skip them, or fail the run."),
]
WebhookUrl = Annotated[
    str | None,
    typer.Option("--webhook", help="The https URL that receives an event when a run ends."),
]
WebhookSignature = Annotated[bool, typer.Option("--webhook-signature", help="Sign the deliveries.")]
Kind = Annotated[
    Literal["csv", "ndjson", "txt"] | None,
    typer.Option("--type", help="The format of the list [by the name of the file]."),
]
UrlColumn = Annotated[str | None, typer.Option(help="CSV: the column with the URL [url].")]
IdColumn = Annotated[
    str | None, typer.Option(help="CSV: the column with your own ids [external_id].")
]
Delimiter = Annotated[
    str | None, typer.Option(help="CSV: the character between columns, or `tab` [,].")
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="CSV: there is no header; columns are numbered from 0.")
]


class PartlyRefused(ConveyorError):
    """The service refused the list or a part of it; names the lines, and what was accepted."""


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options about a list; what is left out follows from its name and its first line."""

    type: str | None = None
    url_column: str | None = None
    id_column: str | None = None
    delimiter: str | None = None
    no_header: bool = False

    @property
    def is_given(self) -> bool:
        return self != ListOptions()


def list_options(
    *,
    type_: str | None,
    url_column: str | None,
    id_column: str | None,
    delimiter: str | None,
    no_header: bool | None,
) -> ListOptions:
    return ListOptions(
        type=type_,
        url_column=url_column,
        id_column=id_column,
        delimiter=delimiter,
        no_header=bool(no_header),
    )


def webhook_of(*, webhook: str | None, webhook_signature: bool | None) -> dict[str, object] | None:
    if webhook is None and webhook_signature:
        raise RefusedToStart("--webhook-signature needs --webhook")
    return None if webhook is None else {"url": webhook, "signature": bool(webhook_signature)}


@with_service
@with_options(
    list_options,
    type_=Kind,
    url_column=UrlColumn,
    id_column=IdColumn,
    delimiter=Delimiter,
    no_header=NoHeader,
)
@with_options(webhook_of, webhook=WebhookUrl, webhook_signature=WebhookSignature)
@with_options(schedule_of, cron=Cron, every=Every, at=At, timezone=Timezone)
def submit(
    schedule: dict[str, object] | None,
    webhook: dict[str, object] | None,
    form: ListOptions,
    service: Endpoint,
    file: File,
    *,
    param: ScraperParams = None,
    name: Annotated[str | None, typer.Option(help="A name for the job [that of the file].")] = None,
    external_id: Annotated[str | None, typer.Option(help="Your own id for the job.")] = None,
    metadata: Labels = None,
    max_inflight: MaxInflight = None,
    max_per_host: MaxPerHost = None,
    retries: Retries = None,
    result_ttl_days: ResultTtlDays = None,
    open_: StaysOpen = False,
    idempotency_key: Again = None,
    on_invalid: BadLines = None,
    max_failed: MaxFailed = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Submit a list of URLs as a job. A list that is too long for one call is uploaded."""
    allowed = None if max_failed is None else failures_allowed(max_failed, follow=follow)
    if schedule and follow:
        raise RefusedToStart("--follow needs a job that runs now: a scheduled one has no run yet")
    fields: dict[str, object] = {
        "type": "scheduled" if schedule else None,
        "schedule": schedule,
        "webhook": webhook,
        "zenrows_params": parameters(param or []),
        "name": name or _name_of(file),
        "external_id": external_id,
        "metadata": labels(metadata or []),
        "max_inflight": max_inflight,
        "max_per_host": max_per_host,
        "retries": retries,
        "result_ttl_days": result_ttl_days,
        "status": "open" if open_ else None,
        "on_invalid": on_invalid,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    key = _checked_key(idempotency_key)
    raw = _submitted(service, file, given, form, key, quiet=as_json)
    _print_and_follow(service, raw, file, as_json=as_json, follow=follow, allowed=allowed)


def _name_of(file: str) -> str | None:
    """A job is named after its file, where that is a name that the service accepts."""
    name = None if file == STANDARD_INPUT else Path(file).name[:LONGEST_NAME]
    return name if name and name.isprintable() else None


def failures_allowed(text: str, *, follow: bool) -> Callable[[Run], bool]:
    """Whether a run has no more failed tasks than a number, or a percentage of all."""
    found = SHARE.fullmatch(text)
    if not found or float(found["percent"] or 0) > 100:
        raise RefusedToStart(f"--max-failed must be like 5% or 20, got {plain(text)!r}")
    if not follow:
        raise RefusedToStart("--max-failed needs --follow: only the end of the run tells")
    if found["percent"]:
        percent = Fraction(found["percent"])  # exact: of floats, 4.1 % of 3,000 is less than 123
        return lambda run: run.stats.failed * 100 <= percent * run.stats.total
    most = int(found["number"])
    return lambda run: run.stats.failed <= most


def _submitted(
    service: Endpoint,
    file: str,
    given: dict[str, object],
    form: ListOptions,
    key: str,
    *,
    quiet: bool,
) -> bytes:
    with output.interruptible("Nothing was submitted."):
        source = ListFile(file)
        by_call = not (source.is_compressed or form.is_given or "on_invalid" in given)
        listed = _all_for_a_call(source, may_skip=not _is_open(given)) if by_call else None
        if listed is not None:
            given["tasks"] = _tasks(listed, file, may_be_empty=_is_open(given))
        elif _is_open(given):
            raise RefusedToStart(_NOT_OPEN.format(source.name))
        else:
            given["file_input_id"] = upload(service, source, form, quiet=quiet)
    try:
        with service.repeating_client(key) as client:
            return client.request("POST", "jobs", body=given, idempotency_key=key)
    except ApiError as error:
        if listed is None and error.code == IdempotencyKeyConflict.code:
            raise Advised(error, _NEW_LIST) from None
        refused = naming_lines(error, file, listed or [])
        raise PartlyRefused(
            f"{refused}\n{SKIP}" if error.invalid_tasks and not _is_open(given) else str(refused)
        ) from None


_NOT_OPEN = (
    "{}: an open job must begin with one call: at most "
    f"{MOST_TASKS:,} tasks, not compressed, without options about the list\n"
    "  leave --open out to upload the list, however long it is; or submit --open a short one, and "
    "add the rest with `conveyor add`"
)
_SCHEME = "correct these lines and repeat the command; every URL begins with https:// or http://"
_NEW_LIST = (
    "each upload counts as a new list, even of the same file: `conveyor jobs` shows whether the job "
    "of this key exists; to submit another one, use another --idempotency-key"
)


def _all_for_a_call(source: ListFile, *, may_skip: bool) -> list[ListedTask] | None:
    """The tasks of a list; None when there are more than a call takes."""
    if not source.fits_a_call():
        return None
    try:
        with open_list(source.file, source.held()) as tasks:
            listed = list(islice(tasks, MOST_TASKS + 1))
    except UnusableList as error:  # an open job cannot be uploaded
        raise RefusedToStart(f"{error}\n{error.advice}" if may_skip else str(error)) from None
    return listed if len(listed) <= MOST_TASKS else None


def _tasks(
    listed: Sequence[ListedTask], file: str, *, may_be_empty: bool
) -> list[dict[str, object]]:
    if not (listed or may_be_empty):
        raise RefusedToStart(f"{list_name(file)}: must have at least one URL, got none")
    return [one.task for one in listed]


def _is_open(given: Mapping[str, object]) -> bool:
    return given.get("status") == "open"


def _checked_key(key: str | None) -> str:
    """The given key, or a new one: the client may repeat the call when a connection breaks."""
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key and key):
        raise RefusedToStart(
            "--idempotency-key must be 1 to 128 printable ASCII characters without spaces"
        )
    return key or str(uuid.uuid4())


def _print_and_follow(
    service: Endpoint,
    raw: bytes,
    file: str,
    *,
    as_json: bool,
    follow: bool,
    allowed: Callable[[Run], bool] | None,
) -> None:
    made = decoded(raw, SubmittedJob)
    if not follow:
        _print_submitted(made, raw, file, as_json=as_json)
        if not as_json:
            then = "status {} --follow" if made.latest_run else "schedule show {}"
            output.note(f"See its progress with: conveyor {then.format(plain(made.job_id))}")
        return
    from conveyor.cli.follow import follow_and_exit, how_to_follow  # noqa: PLC0415 - loads rich

    with output.interruptible(how_to_follow(made.job_id)):
        _print_submitted(made, raw, file, as_json=as_json)
        follow_and_exit(service, made.job_id, made.latest_run, as_json=as_json, allowed=allowed)


def _print_submitted(made: SubmittedJob, raw: bytes, file: str, *, as_json: bool) -> None:
    """On a pipe only the id: a script stores it in a variable."""
    if as_json:
        output.json_line(raw)
    elif output.on_terminal():
        what = f"{made.accepted_tasks:,} tasks" if made.accepted_tasks else plain(list_name(file))
        print(f"Submitted {what} as job {plain(made.job_id)}")
    else:
        print(plain(made.job_id), flush=True)


# Uploads.


def upload(service: Endpoint, source: ListFile, form: ListOptions, *, quiet: bool) -> str:
    """Upload a list; its file input id. A file is sent again, once, if the connection breaks."""
    from conveyor.cli.bars import UploadBar  # noqa: PLC0415 - loads rich

    options = upload_options(source, form)
    patience = Patience(attempts=TIMES_SENT, first=0.1)
    file = source.file if source.is_repeatable else cast("BinaryIO", source.stream())
    try:
        with (
            Conveyor(service.url, service.key, patience=patience) as client,
            UploadBar(source.length, hidden=quiet) as bar,
        ):
            return client.upload(file, **options, on_sent=bar.sent)
    except UnreachableError as error:
        raise UnreachableError(
            f"{source.name}: the upload broke off: {plain(error)}\n"
            "  nothing was submitted; repeat the command. A list compressed with gzip or zstd "
            "uploads faster"
        ) from None
    except OSError as error:
        raise RefusedToStart(f"{source.name}: {error.strerror}; nothing was submitted") from None
    except ValueError as error:
        raise RefusedToStart(f"{source.name}: {error}; nothing was submitted") from None


def upload_options(source: ListFile, form: ListOptions) -> FileFormat:
    """How the service must read the list. A missing column is reported before the upload."""
    kind = form.type or source.kind
    if kind == "csv":
        return _csv_options(source, form)
    if form != ListOptions(type=form.type):
        raise RefusedToStart(
            f"{source.name}: options about columns need a CSV list, got {kind}; if it is CSV, give "
            "--type csv"
        )
    return FileFormat(type=kind)


def _csv_options(source: ListFile, form: ListOptions) -> FileFormat:
    delimiter = "\t" if form.delimiter in TAB else form.delimiter or ","
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise RefusedToStart(f"--delimiter must be one character or `tab`, got {form.delimiter!r}")
    if form.no_header:
        return FileFormat(
            type="csv",
            header=False,
            delimiter=delimiter,
            url_column=_index("--url-column", form.url_column or "0"),
            id_column=None if form.id_column is None else _index("--id-column", form.id_column),
        )
    names = source.columns(delimiter)
    id_column = form.id_column or ("external_id" if names and "external_id" in names else None)
    url_column = form.url_column or "url"
    for name in (url_column, id_column):
        if names is not None and name is not None and name not in names:
            raise RefusedToStart(
                f"{source.name}: no column is named `{name}`, only {plain(', '.join(names))}\n"
                f"{SEE_COLUMNS}"
            )
    return FileFormat(type="csv", delimiter=delimiter, url_column=url_column, id_column=id_column)


def _index(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RefusedToStart(f"{option} with --no-header must be a number from 0, got {text!r}")
    return int(text)


def naming_lines(error: ApiError, file: str, listed: Sequence[ListedTask]) -> ConveyorError:
    lacks_scheme = any(_lacks_scheme(fault.reason, fault.value) for fault in error.invalid_tasks)
    head = explained(error, _SCHEME if lacks_scheme else None)
    lines = [_with_lines(head, listed), *_faults(error, file, listed)]
    return PartlyRefused("\n".join(lines))


def _with_lines(text: str, listed: Sequence[ListedTask]) -> str:
    """A message of the service with the lines of tasks that it names by their index."""

    def named(found: re.Match[str]) -> str:
        line = _line_of(int(found["index"]), listed)
        return found[0] if line is None else f"on line {line}"

    return TASK_INDEX.sub(named, text)


def _line_of(index: int, listed: Sequence[ListedTask]) -> int | None:
    return listed[index].line if 0 <= index < len(listed) else None


def _lacks_scheme(reason: str, value: str) -> bool:
    is_of_url = reason in ("malformed_url", "unsupported_scheme")
    return is_of_url and not value.lower().startswith(("http://", "https://"))


def _faults(error: ApiError, file: str, listed: Sequence[ListedTask]) -> Iterator[str]:
    from conveyor.domain.submission import meant_name  # noqa: PLC0415 - for refusals only

    for fault in error.invalid_tasks[:MOST_NAMED]:
        line = fault.line if fault.line is not None else _line_of(fault.index, listed)
        if line is not None:
            what = plain(f"{fault.reason} {fault.value}").rstrip()
            like = meant_name(fault.reason, fault.value)
            hint = f"; did you mean {like}?" if like else ""
            yield f"  {plain(list_name(file))}, line {line}: {what}{hint}"
    if (more := len(error.invalid_tasks) - MOST_NAMED) > 0:
        yield f"  and {more:,} more"
