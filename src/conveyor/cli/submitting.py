"""The commands that hand in tasks: `submit` and `add`."""

from typing import Annotated

import typer

from conveyor.cli import handing_in, show, telling
from conveyor.cli.options import ConfigFile, Follow, JobId, Json, Key, Url
from conveyor.cli.reach import reach
from conveyor.cli.remote import read
from conveyor.cli.shapes import Added, Submitted

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Lines of URLs; or tasks, in .ndjson or .jsonl; or .csv with a `url` column; "
        "- for standard input.",
    ),
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
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key and list is one job.")
    ] = None,
    follow: Follow = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Submit a list of URLs as a job."""
    remote = reach(url, key, config)
    fields: dict[str, object] = {
        "zenrows_params": handing_in.parameters(param or []),
        "name": name,
        "external_id": external_id,
        "max_inflight": max_inflight,
        "retries": retries,
        "status": "open" if open_ else None,
    }
    raw = handing_in.submit(remote, file, fields, idempotency_key=idempotency_key)
    made = read(raw, Submitted)
    with show.interruptible(telling.again(made.job_id)):
        _tell_submitted(raw, as_json=as_json, followed=follow)
        if follow:
            telling.follow(remote, made.job_id, made.latest_run, as_json=as_json)


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


def _tell_submitted(raw: bytes, *, as_json: bool, followed: bool) -> None:
    """On a pipe the id alone, for a variable of a script."""
    answer = read(raw, Submitted)
    if as_json:
        show.raw(raw)
    elif show.on_terminal():
        print(f"Submitted {answer.accepted_tasks:,} tasks as job {show.plain(answer.job_id)}")
    else:
        print(show.plain(answer.job_id), flush=True)
    if not (as_json or followed):
        show.aside(f"Follow it with: conveyor status {show.plain(answer.job_id)} --follow")
