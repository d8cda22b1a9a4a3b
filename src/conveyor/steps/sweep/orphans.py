"""Orphans and retention: remove what nothing refers to, and what has expired.

Orphans are rows, bodies and objects that a crash left without a run, job or input that names them.
Bodies, inputs and events expire. Both grow with the number of jobs ever run, so these listings are
long: they are swept in parts, over many rounds.

Storage that bills its listings, that other services may use too, or that packs bodies, is not listed:
bodies expire by the rows of their runs, and orphans are left to rules of the storage.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from conveyor.domain import file_input as file_input_rules
from conveyor.domain.audit import MissedStep
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import ExportId, InputId, JobId, RunId, is_ulid, ulid_milliseconds
from conveyor.domain.job import Deletion, Job, JobStatus
from conveyor.domain.outbox import EventStatus, OutboxEvent, last_tried
from conveyor.domain.run import ENDED, Run, RunStatus
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.pagination import every_of_run
from conveyor.steps.sweep.checks import YOUNG, Entry, Removal, Repair, SweepAction, SweepCheck

CHUNK = 5_000
MOST_BODIES = 50_000  # of one run, removed in one round
EVENT_LIFE = timedelta(days=30)  # of events that need not be sent any more
LATE = timedelta(days=1)  # after the end of a run every claim that was held then has settled
KEY_PARTS = {  # of an object of ours, by the prefix of its key
    "lists/": 4,
    "pins/": 2,
    "inputs/": 3,
    "exports/": 4,
    "reports/": 4,
}
ACTIONS = {  # of the sweeper, by the same prefix
    "lists/": "orphan_list",
    "pins/": "orphan_source_list",
    "inputs/": "orphan_input",
    "exports/": "orphan_export",
    "reports/": "orphan_report",
}
BY_AGE_ALONE = {"lists/", "pins/"}  # removed at first sight

IsWanted = Callable[[Sequence[str], str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    metadata: Metadata
    tasks: Tasks
    bodies: Bodies
    blobs: Blobs
    clock: Clock
    body_life: timedelta

    def checks(self) -> Sequence[SweepCheck]:
        wanted: dict[str, IsWanted] = {
            "lists/": self._is_listed,
            "pins/": self._is_kept_by_a_job,
            "inputs/": self._is_a_file_input,
            "exports/": self._is_an_export,
            "reports/": self._is_of_a_run,
        }
        return (
            SweepCheck(name="rows", listing=self._rows, long=True),
            SweepCheck(
                name="bodies",
                listing=self._bodies if self.bodies.is_swept else self._runs,
                long=True,
                most=MOST_BODIES,
            ),
            SweepCheck(name="inputs", listing=self._inputs, long=True),
            SweepCheck(name="events", listing=self._events, long=True),
            *(
                SweepCheck(
                    name=prefix,
                    listing=partial(self._objects, prefix, is_wanted),
                    long=True,
                    prefix=prefix,
                )
                for prefix, is_wanted in wanted.items()
                if self.blobs.is_swept
            ),
        )

    async def _rows(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.tasks.runs_held(limit=limit, after=after)
        return [(run_id, partial(self._rows_of, run_id)) for run_id in page]

    async def _rows_of(self, run_id: RunId, patient: bool) -> SweepAction | None:
        """Rows of a submit that never committed, or written after a delete."""
        if not self._is_old(run_id, patient=patient):
            return None
        if not await self._is_run_gone(await self.metadata.get(Run, run_id)):
            return None
        missed = MissedStep(
            action="orphan_rows",
            key=f"rows {run_id}",
            what="it has rows, and the run does not exist",
            run_id=run_id,
        )
        return Repair(missed, partial(self._discard, run_id))

    async def _discard(self, run_id: RunId) -> int:
        while await self.tasks.discard(run_id, limit=CHUNK):
            pass
        return 1

    async def _bodies(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.bodies.runs_held(limit=limit, after=after)
        return [("/".join(ids), partial(self._bodies_of, *ids)) for ids in page]

    async def _bodies_of(self, job_id: JobId, run_id: RunId, patient: bool) -> SweepAction | None:
        """Bodies of a run that is gone, whose writer died before it could remove them; or bodies
        that have expired for every run that shows them.
        """
        if not self._is_old(run_id, patient=patient):
            return None
        run = await self.metadata.get(Run, run_id)
        remove = partial(self._delete_bodies, job_id, run_id)
        if await self._is_run_gone(run):
            missed = MissedStep(
                action="orphan_body",
                key=f"bodies {run_id}",
                what="it has bodies, and the run does not exist",
                job_id=job_id,
                run_id=run_id,
            )
            return Repair(missed, remove)
        if run and await self._has_expired(run):
            return Removal("body", remove)
        return None

    async def _runs(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(Run, limit=limit, after=after)
        return [(run.id, partial(self._bodies_by_row, run)) for run in page]

    async def _bodies_by_row(self, run: Run, _patient: bool) -> SweepAction | None:
        """Bodies that have expired, found without a listing of storage."""
        if run.bodies_removed or not await self._has_expired(run):
            return None
        return Removal("body", partial(self._expire, run))

    async def _expire(self, run: Run) -> int:
        removed = await self._delete_bodies(run.job_id, run.id)
        if removed < MOST_BODIES:  # else some may be left
            with suppress(Stale):  # deleted meanwhile
                await self.metadata.commit(replace(run, bodies_removed=True))
        return removed

    async def _has_expired(self, run: Run) -> bool:
        """Whether every body of a run has expired, for all runs that show it.

        A body expires `result_ttl_days` of its job after it was scraped, whichever run shows it.
        No body is written after the end of its run, except by claims that were held at that time.
        """
        age = self.clock.now() - run.updated_at - LATE
        if run.status not in ENDED or age < self.body_life:
            return False
        job = await self.metadata.get(Job, run.job_id)
        return job is not None and age >= timedelta(days=job.result_ttl_days)

    async def _delete_bodies(self, job_id: JobId, run_id: RunId) -> int:
        removed = 0
        while removed < MOST_BODIES:
            found = await self.bodies.delete_run(job_id, run_id, limit=CHUNK)
            if not found:
                break
            removed += found
        return removed

    async def _is_run_gone(self, run: Run | None) -> bool:
        """Whether a run does not exist, or is deleted and purged."""
        if run is None:
            return True
        if run.status is not RunStatus.DELETED:
            return False
        return not (await self._awaits_purge(run.id) or await self._awaits_purge(run.job_id))

    async def _awaits_purge(self, name: str) -> bool:
        """Whether the job or run of this id is deleted and not purged yet."""
        deletion = await self.metadata.get(Deletion, name)
        return deletion is not None and deletion.done_at is None

    async def _inputs(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(FileInput, limit=limit, after=after)
        return [(file_input.id, partial(self._file_input, file_input)) for file_input in page]

    async def _file_input(self, file_input: FileInput, _patient: bool) -> SweepAction | None:
        """An input that no job uses and that has expired; or one held for a job that is gone."""
        # Judged as of 10 minutes ago: a job that named it at the last moment is stored by now.
        now = self.clock.now() - YOUNG
        if file_input_rules.is_over(file_input, now):
            return Removal("input", partial(self._remove_input, file_input))
        if file_input_rules.is_open(file_input, now):
            return None
        for job_id in file_input.jobs:
            if await self._is_job_gone(await self.metadata.get(Job, job_id)):
                return Repair(
                    _held_input(file_input, job_id),
                    partial(self._release_input, file_input, job_id),
                )
        return None

    async def _is_job_gone(self, job: Job | None) -> bool:
        """Whether a job does not exist, or is deleted and purged."""
        if job is None:
            return True
        return job.status is JobStatus.DELETED and not await self._awaits_purge(job.id)

    async def _events(self, after: str, limit: int) -> Sequence[Entry]:
        job_id, _, event_id = after.partition("/")
        page = await self.metadata.page(OutboxEvent, limit=limit, after=(job_id, event_id))
        return [(f"{event.job_id}/{event.id}", partial(self._event, event)) for event in page]

    async def _event(self, event: OutboxEvent, _patient: bool) -> SweepAction | None:
        """An event whose last delivery is 30 days old. Until then it is listed and can be redelivered."""
        if event.status is EventStatus.OWED:
            return None
        if last_tried(event) + EVENT_LIFE > self.clock.now():
            return None
        return Removal("event", partial(self._remove_event, event))

    async def _remove_event(self, event: OutboxEvent) -> int:
        try:
            # A redelivery may have made it due again meanwhile.
            await self.metadata.commit(Removed(event, if_unchanged=True))
        except Stale:
            return 0
        return 1

    async def _release_input(self, file_input: FileInput, job_id: JobId) -> int:
        try:
            await self.metadata.commit(file_input_rules.released_by(file_input, job_id))
        except Stale:
            return 0
        return 1

    async def _remove_input(self, file_input: FileInput) -> int:
        # The list first: after a crash in between, the row leads the next round here again.
        if file_input.key:
            await self.blobs.delete([file_input.key])
        await self.metadata.commit(Removed(file_input))
        return 1

    async def _objects(
        self, prefix: str, is_wanted: IsWanted, after: str, limit: int
    ) -> Sequence[Entry]:
        keys = await self.blobs.keys(prefix, limit=limit, after=after)
        return [(key, partial(self._object, key, prefix, is_wanted)) for key in keys]

    async def _object(
        self, key: str, prefix: str, is_wanted: IsWanted, patient: bool
    ) -> SweepAction | None:
        """An object that nothing refers to."""
        parts = key.split("/")
        if len(parts) != KEY_PARTS[prefix]:
            return None
        name, _, _ = parts[-1].partition(".")
        # An object that has an id is as old as that id; its run may be far older.
        dated = name if is_ulid(name) else parts[-2]
        if not self._is_old(dated, patient=patient) or await is_wanted(parts, key):
            return None
        found = _orphan_blob(ACTIONS[prefix], key)
        return Repair(found, partial(self._delete, key), at_first_sight=prefix in BY_AGE_ALONE)

    async def _delete(self, key: str) -> int:
        await self.blobs.delete([key])
        return 1

    async def _is_listed(self, parts: Sequence[str], key: str) -> bool:
        """Whether an unfinished batch of its run reads it."""
        async for batch in every_of_run(self.metadata, Batch, RunId(parts[2])):
            if batch.blob == key:
                return True
        return False

    async def _is_kept_by_a_job(self, parts: Sequence[str], key: str) -> bool:
        job = await self.metadata.get(Job, JobId(parts[-1].removesuffix(".ndjson")))
        return bool(job and job.source_list and job.source_list.blob == key)

    async def _is_a_file_input(self, parts: Sequence[str], key: str) -> bool:
        file_input = await self.metadata.get(FileInput, InputId(parts[1]))
        return file_input is not None and file_input.key == key

    async def _is_an_export(self, parts: Sequence[str], _key: str) -> bool:
        """Whether it is the file of a stored export, or a part of one being written."""
        name, _, _ = parts[-1].partition(".")
        return await self.metadata.get(Export, ExportId(name)) is not None

    async def _is_of_a_run(self, parts: Sequence[str], _key: str) -> bool:
        return not await self._is_run_gone(await self.metadata.get(Run, RunId(parts[2])))

    def _is_old(self, name: str, *, patient: bool) -> bool:
        """Whether it is old enough to be judged. A name that is no ULID is not Conveyor's: never."""
        if not is_ulid(name):
            return False
        age = self.clock.now().timestamp() * 1000 - ulid_milliseconds(name)
        return not patient or age > YOUNG.total_seconds() * 1000


def _held_input(file_input: FileInput, job_id: JobId) -> MissedStep:
    return MissedStep(
        action="held_input",
        key=f"input {file_input.id} {job_id}",
        what=f"the file input {file_input.id} is held for it, and the job does not exist",
        job_id=job_id,
    )


def _orphan_blob(action: str, key: str) -> MissedStep:
    """An object that nothing refers to, under `<kind>/<job>/<run>/`, or of a job, or an input."""
    job_id: str | None = None
    run_id: str | None = None
    match key.split("/"):
        case ["pins", name]:
            job_id = name.removesuffix(".ndjson")
        case [kind, job, run, *_] if kind != "inputs":
            job_id, run_id = job, run
    return MissedStep(
        action=action,
        key=f"blob {key}",
        what=f"nothing refers to the object {key}",
        job_id=JobId(job_id) if job_id else None,
        run_id=RunId(run_id) if run_id else None,
    )
