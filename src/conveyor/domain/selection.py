"""Selections: which tasks of an ended run a rerun scrapes again, and with which parameters.

Listings of results take the same conditions, so that they show what a rerun would repeat.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from conveyor.domain import params as params_rules
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import LONGEST_CODE, LONGEST_HOST, FailureGroup
from conveyor.domain.ids import TASK_ID, TaskId
from conveyor.domain.job import Job
from conveyor.domain.json_bodies import LONGEST_SHOWN, check_names, decode_body, field_error
from conveyor.domain.params import Params
from conveyor.domain.submission import Limits, checked_params
from conveyor.domain.task import FINAL, Task, TaskSpec, TaskStatus, counter_of, failure_of

MOST_VALUES = 1_000  # of one condition
FAILED: tuple[TaskStatus, ...] = (TaskStatus.FAILED,)
FILTERS = ("host", "reason", "code")  # conditions that a listing of results takes too

Statuses = frozenset[TaskStatus]


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions on a task. All that are given must hold; without any, every task is selected."""

    statuses: tuple[TaskStatus, ...] | None = None
    reasons: tuple[FailureReason, ...] = ()
    codes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    task_ids: tuple[TaskId, ...] = ()
    scraped_before: datetime | None = None

    @property
    def is_all(self) -> bool:
        return self == ALL

    @property
    def scraped_again(self) -> Statuses:
        """The statuses that a selected task may have.

        A task that an ended run still holds as processing counts as pending.
        """
        if self.statuses is None:
            return frozenset(TaskStatus)
        pending = {TaskStatus.PROCESSING} if TaskStatus.PENDING in self.statuses else set()
        return frozenset({*self.statuses, *pending})

    @property
    def is_by_status(self) -> bool:
        """Whether the status of a task alone says if it is selected."""
        return self == Selection(statuses=self.statuses)

    @property
    def is_of_failures(self) -> bool:
        """Whether the failure groups of a run tell how many tasks are selected."""
        only = Selection(statuses=FAILED, reasons=self.reasons, codes=self.codes, hosts=self.hosts)
        return self == only


ALL = Selection()


class Chosen(msgspec.Struct, frozen=True):
    """How many tasks a selection has, by how they ended; `unfinished` have no outcome."""

    counts: Counts = ZERO
    unfinished: int = 0

    @property
    def total(self) -> int:
        return self.counts.done + self.unfinished

    def __add__(self, other: "Chosen") -> "Chosen":
        return Chosen(self.counts + other.counts, self.unfinished + other.unfinished)


class RerunBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rerun: conditions on the tasks to repeat, and changes of their parameters."""

    status: list[TaskStatus] | None = None
    reason: list[FailureReason] | None = None
    code: list[str] | None = None
    host: list[str] | None = None
    task_ids: list[str] | None = None
    scraped_before: datetime | None = None
    zenrows_params: dict[str, Any] | None = None


class RerunRequest(msgspec.Struct, frozen=True):
    """What a rerun is asked for."""

    selection: Selection = ALL
    params: Params = msgspec.field(default_factory=dict)  # replace or remove those of the tasks


def parse_rerun(raw: bytes, status: str | None, limits: Limits) -> RerunRequest:
    """Read the body and the query parameter `status` of a rerun; raises `InvalidArgument`."""
    body = RerunBody() if raw.strip() in {b"", b"null"} else decode_body(raw, RerunBody)
    selection = _selection(body, parse_statuses(status))
    params = checked_params(body.zenrows_params, limits, removable=True)
    return RerunRequest(selection, params)


def parse_filter(query: Mapping[str, str], statuses: Statuses | None) -> Selection:
    """The query parameters `host`, `reason` and `code` of a listing; raises `InvalidArgument`."""
    given = {name: query[name].split(",") for name in FILTERS if name in query}
    check_names("reason", given.get("reason", []), list(FailureReason))
    body = RerunBody(
        reason=[FailureReason(name) for name in given["reason"]] if "reason" in given else None,
        code=given.get("code"),
        host=given.get("host"),
    )
    return _selection(body, None if statuses is None else tuple(statuses))


def parse_statuses(text: str | None) -> tuple[TaskStatus, ...] | None:
    """The statuses of the tasks that a rerun repeats; None for all."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    check_names("status", names, list(TaskStatus))
    return tuple(sorted(set(map(TaskStatus, names))))


def check_params(request: RerunRequest, job: Job) -> None:
    """Refuse parameters that do not go with those of the job. Raises `InvalidArgument`."""
    together = params_rules.merged(params_rules.load(job.params), request.params)
    try:
        params_rules.check_together(together, "GET")
    except params_rules.BadParam as bad:
        why = params_rules.explained(bad)
        raise field_error(f"zenrows_params.{bad.key}", f"is refused: {why}") from None


def matcher(selection: Selection) -> Callable[[Task], bool]:
    """A function that says whether a task is selected."""
    statuses = selection.scraped_again
    reasons, codes = frozenset(selection.reasons), frozenset(selection.codes)
    hosts, ids = frozenset(selection.hosts), frozenset(selection.task_ids)
    before = selection.scraped_before

    def matches(task: Task) -> bool:
        if task.status not in statuses or (ids and task.id not in ids):
            return False
        if hosts and task.spec.host[:LONGEST_HOST] not in hosts:  # as in failure groups
            return False
        if before and not (task.is_final and task.made_at < before):
            return False
        if not (reasons or codes):
            return True
        failure = failure_of(task)
        return (not reasons or failure.reason in reasons) and (not codes or failure.code in codes)

    return matches


def chosen_by_status(
    selection: Selection, counts: Counts, tally: Mapping[TaskStatus, int]
) -> Chosen:
    """How many tasks have the statuses and reasons of a selection: at most so many match it."""
    again = selection.scraped_again
    failed: Mapping[str, int] = {
        why: getattr(counts, why) for why in selection.reasons or FailureReason
    }
    return Chosen(
        Counts(
            successful=counts.successful if TaskStatus.SUCCESSFUL in again else 0,
            **(failed if TaskStatus.FAILED in again else {}),
        ),
        sum(n for status, n in tally.items() if status in again - FINAL),
    )


def chosen_by_group(selection: Selection, groups: Sequence[FailureGroup]) -> Chosen:
    """How many failures match, by their groups. Those in a group `other` may all match."""
    found = dict.fromkeys(map(str, FailureReason), 0)
    for group in groups:
        if selection.reasons and group.reason not in selection.reasons:
            continue
        is_code = not selection.codes or group.code in selection.codes
        is_host = not selection.hosts or group.host in selection.hosts
        if group.key.is_other or (is_code and is_host):
            found[group.reason] += group.count
    return Chosen(Counts(**found))


def chosen_among(selection: Selection, tasks: Sequence[Task]) -> Chosen:
    """How many of some tasks match."""
    matches = matcher(selection)
    ended = dict[str, int]()
    unfinished = 0
    for task in filter(matches, tasks):
        if task.is_final:
            ended[counter_of(task)] = ended.get(counter_of(task), 0) + 1
        else:
            unfinished += 1
    return Chosen(Counts(**ended), unfinished)


def with_params(spec: TaskSpec, params: Params) -> TaskSpec:
    """A task with parameters that replace or remove those of the same name, its own and its job's."""
    if not params:
        return spec
    together = {**params_rules.load(spec.params), **params}
    return msgspec.structs.replace(spec, params=params_rules.dump(dict(sorted(together.items()))))


def described(selection: Selection) -> str:
    """The conditions, for a message: " with status failed, reason blocked"; empty for all."""
    named = (
        ("status", selection.statuses or ()),
        ("reason", selection.reasons),
        ("code", selection.codes),
        ("host", selection.hosts),
        ("id", selection.task_ids),
    )
    parts = [
        f"{name} {' or '.join(values[:3])}{' …' if len(values) > 3 else ''}"
        for name, values in named
        if values
    ]
    if selection.statuses == ():
        parts.insert(0, "a status that all conditions allow")
    if selection.scraped_before:
        parts.append(f"a result from before {selection.scraped_before.isoformat()}")
    return f" with {', '.join(parts)}" if parts else ""


def _selection(body: RerunBody, statuses: tuple[TaskStatus, ...] | None) -> Selection:
    return Selection(
        statuses=_statuses(body, statuses),
        reasons=tuple(sorted(set(_values("reason", body.reason)))),
        codes=_texts("code", body.code, LONGEST_CODE),
        hosts=tuple(host.lower() for host in _texts("host", body.host, LONGEST_HOST)),
        task_ids=tuple(map(TaskId, _task_ids(body.task_ids))),
        scraped_before=_instant(body.scraped_before),
    )


def _statuses(
    body: RerunBody, besides: tuple[TaskStatus, ...] | None
) -> tuple[TaskStatus, ...] | None:
    """The statuses that all conditions leave; None if none is about them."""
    given = [besides, tuple(_values("status", body.status)) or None]
    if body.reason or body.code:
        given.append(FAILED)
    if body.scraped_before:
        given.append(tuple(FINAL))
    sets = [set(statuses) for statuses in given if statuses is not None]
    return tuple(sorted(set.intersection(*sets))) if sets else None


def _values(name: str, values: Sequence[Any] | None) -> Sequence[Any]:
    if values is None:
        return ()
    if not 0 < len(values) <= MOST_VALUES:
        raise field_error(name, f"must have 1 to {MOST_VALUES} values, got {len(values)}")
    return values


def _texts(name: str, values: Sequence[str] | None, longest: int) -> tuple[str, ...]:
    texts = _values(name, values)
    for text in texts:
        if not 0 < len(text) <= longest:
            what = f"must have values of 1 to {longest} characters, got {len(text)}"
            raise field_error(name, what)
    return tuple(sorted(set(texts)))


def _task_ids(values: Sequence[str] | None) -> Sequence[str]:
    ids = _values("task_ids", values)
    for one in ids:
        if not TASK_ID.fullmatch(one):
            raise field_error("task_ids", f"must be ids of tasks, got {one[:LONGEST_SHOWN]!r}")
    return sorted(set(ids))


def _instant(given: datetime | None) -> datetime | None:
    if given and given.tzinfo is None:
        raise field_error(
            "scraped_before",
            f"must have a UTC offset, as in 2026-01-31T00:00:00Z, got {given.isoformat()}",
        )
    return given
