"""What every record of jobs and runs must do."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain import run as run_life
from conveyor.domain.counts import Counts
from conveyor.domain.deletion import Deletion
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import CallerId, RunId
from conveyor.domain.job import Job, JobType
from conveyor.domain.run import IngestStatus, Inheritance, Run, RunStatus, Trigger
from conveyor.errors import KeyTaken, Stale
from conveyor.ports.metadata import Change, Metadata, Removed, Row
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.contracts.listings import ListingContract
from conveyor.testing.factories import (
    CALLER,
    JOB,
    OTHER_RUN,
    RUN,
    a_batch,
    a_deletion,
    a_file_input,
    a_job,
    a_run,
    an_export,
    an_idempotency_record,
    as_stored,
    new_ids,
)

SECOND = timedelta(seconds=1)
STRANGER = CallerId("stranger")
ROWS: list[Callable[..., Row]] = [a_job, a_run, a_batch, a_deletion, a_file_input, an_export]


class CommittingContract:
    async def test_what_is_new_is_stored_as_version_one(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run(), a_batch())

        assert await engine.metadata.job(JOB) == a_job(version=1)
        assert await engine.metadata.run(RUN) == a_run(version=1)
        assert list(await engine.metadata.batches(limit=9)) == [a_batch(version=1)]

    async def test_every_field_comes_back(self, engine: Engine) -> None:
        job, run = _rich_job(), _rich_run()
        await engine.metadata.commit(job, run)

        assert await engine.metadata.job(job.id) == as_stored(job)
        assert await engine.metadata.run(run.id) == as_stored(run)

    async def test_what_was_never_stored_is_none(self, engine: Engine) -> None:
        assert await engine.metadata.job(JOB) is None
        assert await engine.metadata.run(RUN) is None
        assert await engine.answers.replay(CALLER, "key") is None

    async def test_a_change_raises_the_version(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run())
        run = run_life.grow(a_run(version=1), 5, engine.clock.now())

        await engine.metadata.commit(run)

        assert await engine.metadata.run(RUN) == msgspec.structs.replace(run, version=2)
        assert await engine.metadata.job(JOB) == a_job(version=1)

    @pytest.mark.parametrize("again", [make() for make in ROWS])
    async def test_what_is_new_must_not_exist(self, engine: Engine, again: Change) -> None:
        await engine.metadata.commit(*(make() for make in ROWS))
        with pytest.raises(Stale):
            await engine.metadata.commit(again)

    @pytest.mark.parametrize("version", [1, 3])
    @pytest.mark.parametrize("make", ROWS)
    async def test_only_the_version_that_is_stored_can_be_replaced(
        self, engine: Engine, make: Callable[..., Change], version: int
    ) -> None:
        await engine.metadata.commit(*(make() for make in ROWS))
        await engine.metadata.commit(make(version=1))

        with pytest.raises(Stale):
            await engine.metadata.commit(make(version=version))

    @pytest.mark.parametrize("missing", [a_job(version=1), a_run(version=1), a_batch(version=1)])
    async def test_what_is_not_there_cannot_be_replaced(
        self, engine: Engine, missing: Change
    ) -> None:
        with pytest.raises(Stale):
            await engine.metadata.commit(missing)

    async def test_a_stale_change_takes_all_others_with_it(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run(), a_batch())

        with pytest.raises(Stale):
            await engine.metadata.commit(
                a_job(version=1, name="new"),
                a_run(id=OTHER_RUN),
                a_batch(first=1),
                Removed(a_batch()),
                an_idempotency_record(),
                a_run(version=7),
            )

        assert await engine.metadata.job(JOB) == a_job(version=1)
        assert await engine.metadata.run(OTHER_RUN) is None
        assert list(await engine.metadata.batches(limit=9)) == [a_batch(version=1)]
        assert await engine.answers.replay(CALLER, "key") is None

    async def test_of_writers_at_the_same_time_one_wins(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run())

        async with asyncio.TaskGroup() as group:
            tries = [
                group.create_task(_wins(engine.metadata, a_run(version=1, total=n)))
                for n in range(5)
            ]

        assert [each.result() for each in tries].count(True) == 1
        stored = await engine.metadata.run(RUN)
        assert stored is not None
        assert stored.version == 2
        assert tries[stored.total].result()

    async def test_committing_nothing_is_fine(self, engine: Engine) -> None:
        await engine.metadata.commit()


class BatchesContract:
    async def test_batches_are_listed_in_order_of_run_and_first_index(self, engine: Engine) -> None:
        runs = [RunId(name) for name in new_ids(2)]
        places = [(run_id, first) for run_id in runs for first in (0, 9, 10, 200)]
        await engine.metadata.commit(
            *[a_batch(run_id=run_id, first=first) for run_id, first in reversed(places)]
        )

        listed = await engine.metadata.batches(limit=99)
        rest = await engine.metadata.batches(limit=3, after=places[2])

        assert [(batch.run_id, batch.first) for batch in listed] == places
        assert [(batch.run_id, batch.first) for batch in rest] == places[3:6]

    async def test_a_batch_keeps_how_far_it_got(self, engine: Engine) -> None:
        await engine.metadata.commit(a_batch(count=10))
        await engine.metadata.commit(a_batch(count=10, written=4, read=99, version=1))

        [batch] = await engine.metadata.batches(limit=9)

        assert batch == a_batch(count=10, written=4, read=99, version=2)

    async def test_a_removed_batch_is_gone(self, engine: Engine) -> None:
        await engine.metadata.commit(a_batch(), a_batch(first=1))

        await engine.metadata.commit(Removed(a_batch(version=1)))

        assert [batch.first for batch in await engine.metadata.batches(limit=9)] == [1]

    async def test_removing_what_is_gone_does_no_harm(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), Removed(a_batch()))
        assert await engine.metadata.job(JOB) == a_job(version=1)


class DeletionsContract:
    async def test_deletions_are_listed_in_order_of_id(self, engine: Engine) -> None:
        names = new_ids(4)
        await engine.metadata.commit(*[a_deletion(id=name) for name in reversed(names)])

        assert [deletion.id for deletion in await engine.metadata.deletions(limit=9)] == names
        rest = await engine.metadata.deletions(limit=2, after=names[0])
        assert [deletion.id for deletion in rest] == names[1:3]

    async def test_a_deletion_keeps_what_it_is_about(self, engine: Engine) -> None:
        await engine.metadata.commit(a_deletion())
        done = a_deletion(run_id=OTHER_RUN, done_at=NOON + SECOND, version=1)
        await engine.metadata.commit(done)

        assert list(await engine.metadata.deletions(limit=9)) == [
            msgspec.structs.replace(done, version=2)
        ]

    @pytest.mark.parametrize("make", [a_job, a_run, a_deletion])
    async def test_what_is_removed_is_gone_whatever_its_version(
        self, engine: Engine, make: Callable[..., Job | Run | Deletion]
    ) -> None:
        await engine.metadata.commit(a_job(), a_run(), a_deletion())
        await engine.metadata.commit(make(version=1))

        await engine.metadata.commit(Removed(make()))

        left = [
            await engine.metadata.job(JOB),
            await engine.metadata.run(RUN),
            next(iter(await engine.metadata.deletions(limit=9)), None),
        ]
        assert [type(one) for one in left].count(type(None)) == 1
        assert not any(isinstance(one, type(make())) for one in left)


class IdempotencyContract:
    async def test_a_claimed_key_gives_its_answer_back(self, engine: Engine) -> None:
        record = an_idempotency_record(body=b'{"\xc3\xbc":0}\x00', fingerprint=bytes(range(32)))
        await engine.metadata.commit(record)
        assert await engine.answers.replay(CALLER, "key") == record

    async def test_keys_belong_to_their_caller(self, engine: Engine) -> None:
        await engine.metadata.commit(an_idempotency_record())
        assert await engine.answers.replay(STRANGER, "key") is None

        await engine.metadata.commit(an_idempotency_record(caller=STRANGER, status=202))

        assert await engine.answers.replay(CALLER, "key") == an_idempotency_record()

    @pytest.mark.parametrize("fingerprint", [b"fingerprint", b"another"])
    async def test_a_standing_claim_keeps_its_key(self, engine: Engine, fingerprint: bytes) -> None:
        await engine.metadata.commit(an_idempotency_record())
        engine.clock.advance(_life_of_a_claim(engine) - SECOND)

        with pytest.raises(KeyTaken):
            await engine.metadata.commit(an_idempotency_record(fingerprint=fingerprint))

        assert await engine.answers.replay(CALLER, "key") == an_idempotency_record()

    async def test_a_taken_key_takes_all_others_with_it(self, engine: Engine) -> None:
        await engine.metadata.commit(an_idempotency_record())

        with pytest.raises(KeyTaken):
            await engine.metadata.commit(a_job(), a_run(), an_idempotency_record())

        assert await engine.metadata.job(JOB) is None
        assert await engine.metadata.run(RUN) is None

    async def test_a_taken_key_is_told_rather_than_a_stale_row(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run(), an_idempotency_record())

        with pytest.raises(KeyTaken):
            await engine.metadata.commit(a_job(), a_run(version=9), an_idempotency_record())

    async def test_an_expired_claim_is_gone_and_can_be_replaced(self, engine: Engine) -> None:
        await engine.metadata.commit(an_idempotency_record())
        engine.clock.advance(_life_of_a_claim(engine) + SECOND)
        assert await engine.answers.replay(CALLER, "key") is None
        anew = an_idempotency_record(status=202, expires_at=engine.clock.now() + SECOND)

        await engine.metadata.commit(anew)

        assert await engine.answers.replay(CALLER, "key") == anew

    async def test_expired_claims_are_cleared_so_many_at_a_time(self, engine: Engine) -> None:
        await engine.metadata.commit(*[an_idempotency_record(key=f"old {n}") for n in range(5)])
        engine.clock.advance(_life_of_a_claim(engine))
        standing = an_idempotency_record(key="new", expires_at=engine.clock.now() + SECOND)
        await engine.metadata.commit(standing)

        cleared = [await engine.answers.clear_expired(limit=3) for _ in range(3)]

        assert cleared == [3, 2, 0]
        assert await engine.answers.replay(CALLER, "new") == standing

    async def test_of_claims_at_the_same_time_one_wins(self, engine: Engine) -> None:
        async with asyncio.TaskGroup() as group:
            tries = [
                group.create_task(_wins(engine.metadata, an_idempotency_record(status=200 + n)))
                for n in range(5)
            ]

        assert [each.result() for each in tries].count(True) == 1
        record = await engine.answers.replay(CALLER, "key")
        assert record is not None
        assert tries[record.status - 200].result()


class MetadataContract(
    CommittingContract, BatchesContract, DeletionsContract, IdempotencyContract, ListingContract
):
    """All that steps rely on. An engine passes by giving an `engine` fixture."""


async def _wins(metadata: Metadata, change: Change) -> bool:
    try:
        await metadata.commit(change)
    except (Stale, KeyTaken):
        return False
    return True


def _life_of_a_claim(engine: Engine) -> timedelta:
    return an_idempotency_record().expires_at - engine.clock.now()


def _rich_job() -> Job:
    return a_job(
        type=JobType.SCHEDULED,
        params='{"js_render":"true"}',
        name="naïve",
        external_id="mine",
        metadata='{"a":"ß"}',
        max_inflight=7,
        retries=0,
        result_ttl_days=3,
        encrypted_key=bytes(range(256)),
        last_batch=True,
    )


def _rich_run() -> Run:
    return a_run(
        total=2**32,
        next_index=2**32,
        sequence=3,
        status=RunStatus.FAILED,
        trigger=Trigger.SCHEDULED,
        last_batch_received=True,
        ingest_status=IngestStatus.DONE,
        failure_reason=AccountReason.INSUFFICIENT_CREDITS,
        failure_detail="No credits left",
        inherited=Inheritance(
            counts=Counts(successful=1, nanos=2**60), idle=3, sources=(OTHER_RUN,)
        ),
        frozen=Counts(successful=2, blocked=3, credits=4, nanos=2**61),
    )
