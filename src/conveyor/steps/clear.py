"""Clear: what nobody has a use for any more goes.

Rows, bodies and objects that nothing refers to; bodies and lists whose time is over. There may be
as many of them as jobs were ever run, so they are gone through in bites, over many rounds.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from conveyor.domain import file_input as file_input_life
from conveyor.domain import lost
from conveyor.domain.batch import Batch
from conveyor.domain.deletion import Deletion
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import ExportId, InputId, JobId, RunId, is_ulid, ulid_milliseconds
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.outbox import EventStatus, OutboxEvent, last_tried
from conveyor.domain.run import ENDED, Run, RunStatus
from conveyor.errors import Stale
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.tasks import Tasks
from conveyor.steps.check import YOUNG, Broken, Check, Entry, Found, Over
from conveyor.steps.shared.pagination import every_of_run

BITE = 5_000
MOST_BODIES = 50_000  # of one run that go in one round
EVENT_LIFE = timedelta(days=30)  # of what is not owed any more
LATE = timedelta(days=1)  # a claim that stood when its run ended has settled by then
OBJECTS = {
    "lists/": 4,
    "pins/": 2,
    "inputs/": 3,
    "exports/": 4,
    "reports/": 4,
}  # and the parts of their keys
BY_AGE_ALONE = {"lists/", "pins/"}

IsWanted = Callable[[Sequence[str], str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    metadata: Metadata
    tasks: Tasks
    bodies: Bodies
    blobs: Blobs
    clock: Clock
    body_life: timedelta

    def checks(self) -> Sequence[Check]:
        wanted: dict[str, IsWanted] = {
            "lists/": self._is_listed,
            "pins/": self._is_kept_by_a_job,
            "inputs/": self._is_in_a_slot,
            "exports/": self._is_an_export,
            "reports/": self._is_of_a_run,
        }
        return (
            Check(name="rows", listing=self._rows, long=True),
            Check(name="bodies", listing=self._bodies, long=True, most=MOST_BODIES),
            Check(name="inputs", listing=self._inputs, long=True),
            Check(name="events", listing=self._events, long=True),
            *(
                Check(
                    name=prefix,
                    listing=partial(self._objects, prefix, is_wanted),
                    long=True,
                    prefix=prefix,
                )
                for prefix, is_wanted in wanted.items()
            ),
        )

    async def _rows(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.tasks.runs_held(limit=limit, after=after)
        return [(run_id, partial(self._rows_of, run_id)) for run_id in page]

    async def _rows_of(self, run_id: RunId, patient: bool) -> Found | None:
        """Rows of submissions that never came to be, or that came after a delete."""
        if not self._is_old(run_id, patient=patient):
            return None
        if not await self._is_gone(await self.metadata.get(Run, run_id)):
            return None
        return Broken(lost.orphan_rows(run_id), partial(self._discard, run_id))

    async def _discard(self, run_id: RunId) -> int:
        while await self.tasks.discard(run_id, limit=BITE):
            pass
        return 1

    async def _bodies(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.bodies.runs_held(limit=limit, after=after)
        return [("/".join(one), partial(self._bodies_of, *one)) for one in page]

    async def _bodies_of(self, job_id: JobId, run_id: RunId, patient: bool) -> Found | None:
        """Bodies of runs that are no more, as their writer died before it could remove them; and
        those that have expired for everyone.
        """
        if not self._is_old(run_id, patient=patient):
            return None
        run = await self.metadata.get(Run, run_id)
        remove = partial(self._delete_bodies, job_id, run_id)
        if await self._is_gone(run):
            return Broken(lost.orphan_bodies(job_id, run_id), remove)
        if run and await self._has_expired(run):
            return Over("body", remove)
        return None

    async def _has_expired(self, run: Run) -> bool:
        """Whether every body of a run is past its time, for all runs that show it.

        A body expires with its job's `result_ttl_days`, counted from when it was made, whichever
        run shows it; and none was made after its run had ended, but for claims that then stood.
        """
        age = self.clock.now() - run.updated_at - LATE
        if run.status not in ENDED or age < self.body_life:
            return False
        job = await self.metadata.get(Job, run.job_id)
        return job is not None and age >= timedelta(days=job.result_ttl_days)

    async def _delete_bodies(self, job_id: JobId, run_id: RunId) -> int:
        removed = 0
        while removed < MOST_BODIES:
            found = await self.bodies.delete_run(job_id, run_id, limit=BITE)
            if not found:
                break
            removed += found
        return removed

    async def _is_gone(self, run: Run | None) -> bool:
        """Whether a run is not on record, or deleted and said to be cleared."""
        if run is None:
            return True
        if run.status is not RunStatus.DELETED:
            return False
        return not (await self._is_owed(run.id) or await self._is_owed(run.job_id))

    async def _is_owed(self, name: str) -> bool:
        """Whether what is deleted under this id is still to be cleared."""
        deletion = await self.metadata.get(Deletion, name)
        return deletion is not None and deletion.done_at is None

    async def _inputs(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.metadata.page(FileInput, limit=limit, after=after)
        return [(file_input.id, partial(self._slot, file_input)) for file_input in page]

    async def _slot(self, file_input: FileInput, _patient: bool) -> Found | None:
        """A list that no job uses goes after its day; a job that is no more uses none.

        A little later: a job that came in the last moment has been recorded by then.
        """
        now = self.clock.now() - YOUNG
        if file_input_life.is_over(file_input, now):
            return Over("input", partial(self._remove_slot, file_input))
        if file_input_life.is_open(file_input, now):
            return None
        for job_id in file_input.jobs:
            if await self._is_forgotten(await self.metadata.get(Job, job_id)):
                return Broken(
                    lost.held_input(file_input, job_id), partial(self._let_go, file_input, job_id)
                )
        return None

    async def _is_forgotten(self, job: Job | None) -> bool:
        """Whether a job is not on record, or deleted and said to be cleared."""
        if job is None:
            return True
        return job.status is JobStatus.DELETED and not await self._is_owed(job.id)

    async def _events(self, after: str, limit: int) -> Sequence[Entry]:
        job_id, _, event_id = after.partition("/")
        page = await self.metadata.page(OutboxEvent, limit=limit, after=(job_id, event_id))
        return [(f"{one.job_id}/{one.id}", partial(self._event, one)) for one in page]

    async def _event(self, event: OutboxEvent, _patient: bool) -> Found | None:
        """Events that are owed stay. The others stay for a while, for their caller to see or redeliver."""
        if event.status is EventStatus.OWED:
            return None
        if last_tried(event) + EVENT_LIFE > self.clock.now():
            return None
        return Over("event", partial(self._remove_event, event))

    async def _remove_event(self, event: OutboxEvent) -> int:
        """Unless its caller has asked for a redelivery meanwhile."""
        try:
            await self.metadata.commit(Removed(event, if_unchanged=True))
        except Stale:
            return 0
        return 1

    async def _let_go(self, file_input: FileInput, job_id: JobId) -> int:
        try:
            await self.metadata.commit(file_input_life.released_by(file_input, job_id))
        except Stale:
            return 0
        return 1

    async def _remove_slot(self, file_input: FileInput) -> int:
        """The list first: whoever dies in between finds the row again."""
        if file_input.blob:
            await self.blobs.delete([file_input.blob])
        await self.metadata.commit(Removed(file_input))
        return 1

    async def _objects(
        self, prefix: str, is_wanted: IsWanted, after: str, limit: int
    ) -> Sequence[Entry]:
        keys = await self.blobs.keys(prefix, limit=limit, after=after)
        return [(key, partial(self._object, key, prefix, is_wanted)) for key in keys]

    async def _object(
        self, key: str, prefix: str, is_wanted: IsWanted, patient: bool
    ) -> Found | None:
        """An object that nothing refers to."""
        parts = key.split("/")
        if len(parts) != OBJECTS[prefix]:
            return None
        name, _, _ = parts[-1].partition(".")
        # What bears a name of its own is as old as that: its run may be far older.
        born = name if is_ulid(name) else parts[-2]
        if not self._is_old(born, patient=patient) or await is_wanted(parts, key):
            return None
        found = lost.orphan_blob(f"orphan_{prefix[:-2]}", key)
        return Broken(found, partial(self._delete, key), at_once=prefix in BY_AGE_ALONE)

    async def _delete(self, key: str) -> int:
        await self.blobs.delete([key])
        return 1

    async def _is_listed(self, parts: Sequence[str], key: str) -> bool:
        """Whether an unfinished batch of its run has it."""
        async for batch in every_of_run(self.metadata, Batch, RunId(parts[2])):
            if batch.blob == key:
                return True
        return False

    async def _is_kept_by_a_job(self, parts: Sequence[str], key: str) -> bool:
        job = await self.metadata.get(Job, JobId(parts[-1].removesuffix(".ndjson")))
        return bool(job and job.source_list and job.source_list.blob == key)

    async def _is_in_a_slot(self, parts: Sequence[str], key: str) -> bool:
        file_input = await self.metadata.get(FileInput, InputId(parts[1]))
        return file_input is not None and file_input.blob == key

    async def _is_an_export(self, parts: Sequence[str], _key: str) -> bool:
        """Whether it is one on record, or a part of one that is being made."""
        name, _, _ = parts[-1].partition(".")
        return await self.metadata.get(Export, ExportId(name)) is not None

    async def _is_of_a_run(self, parts: Sequence[str], _key: str) -> bool:
        return not await self._is_gone(await self.metadata.get(Run, RunId(parts[2])))

    def _is_old(self, name: str, *, patient: bool) -> bool:
        """Whether it is old enough to be judged. What bears no name of ours is not ours."""
        if not is_ulid(name):
            return False
        age = self.clock.now().timestamp() * 1000 - ulid_milliseconds(name)
        return not patient or age > YOUNG.total_seconds() * 1000
