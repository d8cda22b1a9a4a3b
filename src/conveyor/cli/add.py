"""`conveyor add`: tasks for an open job, from a list of any length, in many calls."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated

import typer

from conveyor.cli import output
from conveyor.cli.connect import AGAIN, PATIENT, Endpoint, JobId, Json, with_service
from conveyor.cli.hints import explained
from conveyor.cli.output import plain
from conveyor.cli.submit import File, PartlyRefused, naming_lines
from conveyor.cli.task_files import ListedTask, list_name, open_list
from conveyor.client import Added, ApiError, Conveyor
from conveyor.client.transport import decoded
from conveyor.errors import ConveyorError, RefusedToStart

MOST_ADDED = 10_000  # tasks in a call


@with_service
def add(
    service: Endpoint,
    job: JobId,
    file: File,
    *,
    last_batch: Annotated[
        bool, typer.Option("--last-batch", help="Close the job after these tasks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add tasks to an open job."""
    added = _Added()
    try:
        with open_list(file) as source:
            for batch, is_last in _batches(source):
                body: dict[str, object] = {"tasks": [one.task for one in batch]}
                if last_batch and is_last:
                    body["last_batch"] = True
                added.in_doubt = batch
                raw = _add_batch(service, job, body, patiently=added.tasks > 0)
                added.count(batch, decoded(raw, Added).accepted_tasks)
                if as_json:
                    output.json_line(raw)
    except KeyboardInterrupt:
        output.complain(f"interrupted\n{added.where_to_continue(job)}")
        raise typer.Exit(output.INTERRUPTED) from None
    except ApiError as error:
        refused = naming_lines(error, file, added.in_doubt)
        if error.status < 500:  # nothing of a refused call is accepted
            added.in_doubt = ()
        raise added.explaining(refused, job) from None
    except ConveyorError as error:
        raise added.explaining(error, job) from None
    if not added.tasks:
        raise RefusedToStart(f"{list_name(file)}: must have at least one URL, got none")
    if not as_json:
        output.facts([("accepted_tasks", added.tasks)])


class _Added:
    """How far a list was added."""

    def __init__(self) -> None:
        self.tasks = 0
        self.next_line = 1
        self.in_doubt: Sequence[ListedTask] = ()  # of a call without a response

    def count(self, batch: Sequence[ListedTask], accepted: int) -> None:
        self.tasks += accepted
        self.next_line = batch[-1].line + batch[-1].lines
        self.in_doubt = ()

    def explaining(self, error: ConveyorError, job: str) -> ConveyorError:
        """The error that ended the command, with where to continue if something was added."""
        if not (self.tasks or self.in_doubt):
            return error
        return PartlyRefused(f"{explained(error)}\n{self.where_to_continue(job)}")

    def where_to_continue(self, job: str) -> str:
        before = f"  the {self.tasks:,} tasks before line {self.next_line} are accepted"
        if not self.in_doubt:
            return f"{before}: continue from there" if self.tasks else "  nothing was added"
        if not self.tasks:
            before = "  no task is known to be accepted"
        first, last = self.in_doubt[0].line, self.in_doubt[-1].line
        return (
            f"{before}; those of lines {first} to {last} may be: the total of `conveyor status "
            f"{plain(job)}` shows whether it includes these {len(self.in_doubt):,}"
        )


def _add_batch(service: Endpoint, job: str, body: dict[str, object], *, patiently: bool) -> bytes:
    """Add some tasks. Once others were added, a restart of the service is waited out."""
    patience = PATIENT if patiently else AGAIN
    with Conveyor(service.url, service.key, patience=patience) as client:
        return client.request(
            *("POST", "jobs", job, "tasks"), body=body, idempotency_key=str(uuid.uuid4())
        )


def _batches(source: Iterable[ListedTask]) -> Iterator[tuple[list[ListedTask], bool]]:
    """Batches as large as a call takes, each with whether it is the last."""
    rest = iter(source)
    batch = list(islice(rest, MOST_ADDED))
    while batch:
        following = list(islice(rest, MOST_ADDED))
        yield batch, not following
        batch = following
