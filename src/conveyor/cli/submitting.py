"""The commands that hand in tasks: `submit` and `add`."""

from typing import Annotated

import typer

from conveyor.cli import handing_in, show, telling
from conveyor.cli.lists import name_of
from conveyor.cli.options import ConfigFile, Follow, JobId, Json, Key, Url
from conveyor.cli.reach import reach
from conveyor.cli.remote import Remote, read
from conveyor.cli.shapes import Added, Submitted
from conveyor.cli.uploading import Form
from conveyor.domain.submission import OnInvalid
from conveyor.domain.task_list.spec import ListFormat

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Lines of URLs; or tasks, in .ndjson or .jsonl; or .csv with a `url` column; "
        "- for standard input. `submit` takes them packed as .gz or .zst, too.",
    ),
]
Again = Annotated[
    str | None, typer.Option(help="Submitting again with the same key and list is one job.")
]
BadLines = Annotated[
    OnInvalid | None, typer.Option(help="What bad lines do: be left out, or stop the run.")
]
Kind = Annotated[ListFormat | None, typer.Option("--type", help="What the list is [by its name].")]
UrlColumn = Annotated[str | None, typer.Option(help="Of CSV: the column with the URL [url].")]
IdColumn = Annotated[
    str | None, typer.Option(help="Of CSV: the column with ids of your own [external_id].")
]
Delimiter = Annotated[
    str | None, typer.Option(help="Of CSV: between columns; `tab` is one, too [,].")
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="Of CSV: columns are told by place, from 0 on.")
]


def submit(
    file: File,
    *,
    param: Annotated[
        list[str] | None, typer.Option(help="A scraper parameter, name=value; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    external_id: Annotated[str | None, typer.Option(help="An id of your own.")] = None,
    max_inflight: Annotated[int | None, typer.Option(help="Tasks at a time [100].")] = None,
    retries: Annotated[int | None, typer.Option(help="After the first attempt [3].")] = None,
    open_: Annotated[bool, typer.Option("--open", help="More tasks follow with `add`.")] = False,
    idempotency_key: Again = None,
    on_invalid: BadLines = None,
    type_: Kind = None,
    url_column: UrlColumn = None,
    id_column: IdColumn = None,
    delimiter: Delimiter = None,
    no_header: NoHeader = False,
    follow: Follow = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Submit a list of URLs as a job: of any length, for what no call takes is uploaded."""
    remote = reach(url, key, config)
    fields: dict[str, object] = {
        "zenrows_params": handing_in.parameters(param or []),
        "name": name,
        "external_id": external_id,
        "max_inflight": max_inflight,
        "retries": retries,
        "status": "open" if open_ else None,
        "on_invalid": on_invalid,
    }
    form = Form(
        kind=type_,
        url_column=url_column,
        id_column=id_column,
        delimiter=delimiter,
        no_header=no_header,
    )
    raw = handing_in.submit(
        remote, file, fields, form=form, idempotency_key=idempotency_key, quiet=as_json
    )
    _tell_and_follow(remote, raw, file, as_json=as_json, follow=follow)


def add(
    job: JobId,
    file: File,
    *,
    last_batch: Annotated[
        bool, typer.Option("--last-batch", help="Close the job after these.")
    ] = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Add tasks to an open job."""
    accepted = 0
    for raw in handing_in.add(reach(url, key, config), job, file, last_batch=last_batch):
        accepted += read(raw, Added).accepted_tasks
        if as_json:
            show.raw(raw)
    if not as_json:
        show.facts([("accepted_tasks", accepted)])


def _tell_and_follow(remote: Remote, raw: bytes, file: str, *, as_json: bool, follow: bool) -> None:
    made = read(raw, Submitted)
    with show.interruptible(telling.again(made.job_id)):
        _tell_submitted(raw, file, as_json=as_json, followed=follow)
        if follow:
            telling.follow(remote, made.job_id, made.latest_run, as_json=as_json)


def _tell_submitted(raw: bytes, file: str, *, as_json: bool, followed: bool) -> None:
    """On a pipe the id alone, for a variable of a script."""
    answer = read(raw, Submitted)
    what = (
        f"{answer.accepted_tasks:,} tasks" if answer.accepted_tasks else show.plain(name_of(file))
    )
    if as_json:
        show.raw(raw)
    elif show.on_terminal():
        print(f"Submitted {what} as job {show.plain(answer.job_id)}")
    else:
        print(show.plain(answer.job_id), flush=True)
    if not (as_json or followed):
        show.aside(f"Follow it with: conveyor status {show.plain(answer.job_id)} --follow")
