"""Which engines fit together, and which ones a role can run on.

`RULES` is checked at every start, before anything is opened, and docs/reference/engines.md is made
from it. A rule names the first setting that breaks it, so that a refusal says what to change.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from conveyor.app.schemes import Location, Scheme

ROWS = ("metadata", "tasks", "control_queue")
STORAGE = ("bodies", "blobs")


class Choice(NamedTuple):
    """The engine of one kind of state, as the settings choose it."""

    scheme: str
    engine: Scheme[Any]
    address: str

    @property
    def location(self) -> Location:
        return self.engine.location(self.address)


# Kind of state -> its engine. A kind that may be left out, and is, is missing.
Chosen = Mapping[str, Choice]


class Breach(NamedTuple):
    """A setting that breaks a rule."""

    kind: str
    must: str  # follows "<kind> must"
    why: str  # follows what was given
    remedy: str


class Rule(NamedTuple):
    """One rule. `check` gets the name of a role that shares its engines, or an empty text."""

    requirement: str  # for the docs, like `why`
    why: str
    check: Callable[[Chosen, str], Breach | None]


def _shared_by_roles(chosen: Chosen, sharing: str) -> Breach | None:
    for kind, choice in chosen.items():
        if sharing and choice.location is not Location.SHARED:
            return Breach(
                kind,
                f"be on an engine that several processes can share for `conveyor {sharing}`",
                "which belongs to one process",
                "choose another engine, or use `conveyor serve`, which runs every role in one process",
            )
    return None


def _rows_together(chosen: Chosen, _sharing: str) -> Breach | None:
    rows = [kind for kind in ROWS if kind in chosen]
    inside = [kind for kind in rows if chosen[kind].location is Location.FOLDER]
    if not inside or inside == rows:
        return None
    outside = next(kind for kind in rows if kind not in inside)
    return Breach(
        inside[0],
        f"be outside the data folder, because {outside} is",
        "which is a database in the data folder",
        f"put {', '.join(ROWS[:-1])} and {ROWS[-1]} all on sqlite: or none of them",
    )


def _folder_locked(chosen: Chosen, _sharing: str) -> Breach | None:
    if "metadata" not in chosen or chosen["metadata"].location is Location.FOLDER:
        return None
    for kind in STORAGE:
        if kind in chosen and chosen[kind].location is Location.FOLDER:
            return Breach(
                kind,
                "be outside the data folder, because metadata is",
                "which is in the data folder, and nothing would lock that",
                "name a folder that processes share (files:/folder) or a bucket",
            )
    return None


def _queue_of_tasks(chosen: Chosen, _sharing: str) -> Breach | None:
    if "tasks" not in chosen:
        return None
    scheme, tasks, _ = chosen["tasks"]
    if "queues" in chosen and not tasks.takes_queues:
        must, why, remedy = "be empty", "are their own queue", "leave it out"
    elif "queues" not in chosen and not tasks.has_queue:
        must, why, remedy = "name a queue", "are no queue", "choose one"
    else:
        return None
    return Breach("queues", f"{must} with tasks on {scheme}:", f"and rows there {why}", remedy)


RULES = (
    Rule(
        "`conveyor api` and `conveyor worker` take only engines that processes share",
        "other processes must see the same state, permits and notifications",
        _shared_by_roles,
    ),
    Rule(
        "`metadata`, `tasks` and `control_queue` are all on `sqlite:` or none of them is",
        "new rows of tasks in SQLite become durable with the commit of metadata after them",
        _rows_together,
    ),
    Rule(
        "`bodies` and `blobs` are in the data folder only if `metadata` is",
        "the lock of the database is what keeps a second process out of the folder",
        _folder_locked,
    ),
    Rule(
        "`queues` is given exactly if the engine of tasks needs a queue beside its rows",
        "rows that are their own queue need none, and others cannot be claimed without one",
        _queue_of_tasks,
    ),
)


def find_breach(chosen: Chosen, sharing: str) -> Breach | None:
    """Return the first breach of a rule, or None if the engines fit together."""
    return next((found for rule in RULES if (found := rule.check(chosen, sharing))), None)
