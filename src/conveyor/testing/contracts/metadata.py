"""What every engine of metadata must do: commits, point reads by key, and pages of a kind."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from conveyor.domain import run as run_rules
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.encryption_keys import EncryptionKeys
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Deletion, Job
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys
from conveyor.errors import KeyTaken, Stale, TooLarge
from conveyor.ports.metadata import MOST_CHANGES, Change, Metadata, Removed, Row, key_of
from conveyor.testing.contracts.changed_runs import ChangedRunsContract
from conveyor.testing.contracts.engine import SECOND, Engine, joined
from conveyor.testing.contracts.listings import DueContract, ListingContract, UsageContract
from conveyor.testing.contracts.rich_rows import RICH
from conveyor.testing.factories import (
    CALLER,
    EVENT,
    JOB,
    OTHER_RUN,
    RUN,
    a_batch,
    a_deletion,
    a_file_input,
    a_job,
    a_run,
    an_api_key,
    an_event,
    an_export,
    an_idempotency_record,
    as_stored,
    encryption_keys,
    new_ids,
    signing_keys,
)

STRANGER = CallerId("stranger")
KINDS: Mapping[type[Row], Callable[..., Any]] = {
    Job: a_job,
    Run: a_run,
    Batch: a_batch,
    Deletion: a_deletion,
    FileInput: a_file_input,
    Export: an_export,
    OutboxEvent: an_event,
    SigningKeys: signing_keys,
    ApiKey: an_api_key,
    EncryptionKeys: encryption_keys,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class KindsContract:
    """What holds for rows of each kind."""

    @every_kind
    async def test_what_is_new_is_stored_as_version_one(
        self, engine: Engine, kind: type[Row]
    ) -> None:
        row = KINDS[kind]()
        await engine.metadata.commit(row)
        assert await _get(engine, row) == as_stored(row)

    @every_kind
    async def test_every_field_comes_back(self, engine: Engine, kind: type[Row]) -> None:
        row = _rich(kind)
        # An engine that forgets a field returns its default, so no field may have that here.
        defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
        del defaults["version"]  # the engine sets it
        assert not [name for name, value in defaults.items() if getattr(row, name) == value]
        await engine.metadata.commit(row)
        assert await _get(engine, row) == as_stored(row)

    @every_kind
    async def test_what_was_never_stored_or_is_removed_is_none(
        self, engine: Engine, kind: type[Row]
    ) -> None:
        row = KINDS[kind]()
        assert await _get(engine, row) is None
        await engine.metadata.commit(row)
        await engine.metadata.commit(Removed(as_stored(row)))
        assert await _get(engine, row) is None
        assert not await engine.metadata.page(kind, limit=9)

    @every_kind
    async def test_a_change_replaces_the_row_and_raises_its_version(
        self, engine: Engine, kind: type[Row]
    ) -> None:
        row = KINDS[kind]()
        await engine.metadata.commit(row)
        changed = _rich(kind, version=1)
        assert key_of(changed) == key_of(row)
        await engine.metadata.commit(changed)
        assert await _get(engine, row) == msgspec.structs.replace(changed, version=2)

    @every_kind
    async def test_what_is_new_must_not_exist(self, engine: Engine, kind: type[Row]) -> None:
        await engine.metadata.commit(*(make() for make in KINDS.values()))
        with pytest.raises(Stale):
            await engine.metadata.commit(KINDS[kind]())

    @pytest.mark.parametrize("version", [1, 3])
    @every_kind
    async def test_only_the_version_that_is_stored_can_be_replaced(
        self, engine: Engine, kind: type[Row], version: int
    ) -> None:
        make = KINDS[kind]
        await engine.metadata.commit(make())
        await engine.metadata.commit(make(version=1))

        with pytest.raises(Stale):
            await engine.metadata.commit(make(version=version))

    @every_kind
    async def test_what_is_not_there_cannot_be_replaced(
        self, engine: Engine, kind: type[Row]
    ) -> None:
        with pytest.raises(Stale):
            await engine.metadata.commit(KINDS[kind](version=1))

    @every_kind
    async def test_what_is_removed_is_gone_whatever_its_version(
        self, engine: Engine, kind: type[Row]
    ) -> None:
        rows = {each: make() for each, make in KINDS.items()}
        await engine.metadata.commit(*rows.values())
        await engine.metadata.commit(as_stored(rows[kind]))

        await engine.metadata.commit(Removed(rows[kind]))

        left = {each for each, row in rows.items() if await _get(engine, row)}
        assert left == KINDS.keys() - {kind}

    @every_kind
    async def test_a_row_is_removed_if_unchanged(self, engine: Engine, kind: type[Row]) -> None:
        row = KINDS[kind]()
        await engine.metadata.commit(row)
        await engine.metadata.commit(as_stored(row))

        for version in (1, 3):
            changed = msgspec.structs.replace(row, version=version)
            with pytest.raises(Stale):
                await engine.metadata.commit(Removed(changed, if_unchanged=True))
        assert await _get(engine, row)

        current = msgspec.structs.replace(row, version=2)
        await engine.metadata.commit(Removed(current, if_unchanged=True))
        assert await _get(engine, row) is None
        with pytest.raises(Stale):
            await engine.metadata.commit(Removed(current, if_unchanged=True))

    @pytest.mark.parametrize("size", [1, 2, 9])
    @every_kind
    async def test_pages_are_in_order_of_key_and_join(
        self, engine: Engine, kind: type[Row], size: int
    ) -> None:
        field = "run_id" if kind is Batch else "id"
        rows = [KINDS[kind](**{field: name}) for name in new_ids(5)]
        await engine.metadata.commit(*reversed(rows))

        listed = await joined(
            lambda after: engine.metadata.page(kind, limit=size, after=after), key_of, size=size
        )

        assert listed == [as_stored(row) for row in rows]

    async def test_batches_are_in_order_of_run_and_first_index(self, engine: Engine) -> None:
        runs = [RunId(name) for name in new_ids(2)]
        places = [(run_id, first) for run_id in runs for first in (0, 9, 10, 200)]
        await engine.metadata.commit(
            *[a_batch(run_id=run_id, first=first) for run_id, first in reversed(places)]
        )

        listed = await engine.metadata.page(Batch, limit=99)
        rest = await engine.metadata.page(Batch, limit=3, after=places[2])

        assert [key_of(batch) for batch in listed] == places
        assert [key_of(batch) for batch in rest] == places[3:6]
        assert await engine.metadata.get(Batch, places[4]) == listed[4]

    async def test_an_event_is_found_under_its_job_only(self, engine: Engine) -> None:
        await engine.metadata.commit(an_event())
        assert await engine.metadata.get(OutboxEvent, (JOB, EVENT))
        assert await engine.metadata.get(OutboxEvent, (JobId("another"), EVENT)) is None


class CommittingContract:
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

        assert await engine.metadata.get(Job, JOB) == a_job(version=1)
        assert await engine.metadata.get(Run, OTHER_RUN) is None
        assert list(await engine.metadata.page(Batch, limit=9)) == [a_batch(version=1)]
        assert await engine.metadata.get(IdempotencyRecord, (CALLER, "key")) is None

    async def test_a_change_leaves_other_rows_alone(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run())
        run = run_rules.grow(a_run(version=1), 5, engine.clock.now())

        await engine.metadata.commit(run)

        assert await engine.metadata.get(Run, RUN) == msgspec.structs.replace(run, version=2)
        assert await engine.metadata.get(Job, JOB) == a_job(version=1)

    async def test_of_writers_at_the_same_time_one_wins(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run())

        async with asyncio.TaskGroup() as group:
            tries = [
                group.create_task(_wins(engine.metadata, a_run(version=1, total=n)))
                for n in range(5)
            ]

        assert [each.result() for each in tries].count(True) == 1
        stored = await engine.metadata.get(Run, RUN)
        assert stored is not None
        assert stored.version == 2
        assert tries[stored.total].result()

    async def test_removing_what_is_gone_does_no_harm(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), Removed(a_batch()))
        assert await engine.metadata.get(Job, JOB) == a_job(version=1)

    async def test_a_commit_is_bounded(self, engine: Engine) -> None:
        batches = [a_batch(first=number) for number in range(MOST_CHANGES + 1)]

        with pytest.raises(ValueError, match=f"at most {MOST_CHANGES} changes"):
            await engine.metadata.commit(*batches)
        assert not await engine.metadata.page(Batch, limit=9)

        await engine.metadata.commit(*batches[:-1])
        assert len(await engine.metadata.page(Batch, limit=99)) == MOST_CHANGES

    @pytest.mark.parametrize("again", [a_run(total=2), Removed(a_run())])
    async def test_a_commit_changes_a_record_once(self, engine: Engine, again: Change) -> None:
        with pytest.raises(ValueError, match="once"):
            await engine.metadata.commit(a_run(), again)
        assert await engine.metadata.get(Run, RUN) is None

    async def test_a_record_that_is_too_large_is_refused(self, engine: Engine) -> None:
        if not engine.largest_record:
            pytest.skip("records of any size are stored")
        large = a_job(metadata="x" * (engine.largest_record - len(msgspec.json.encode(a_job()))))
        await engine.metadata.commit(large)
        assert await engine.metadata.get(Job, JOB) == as_stored(large)

        larger = a_job(version=1, metadata="x" * engine.largest_record + "x" * 20_000)
        for changes in ([larger], [larger, a_run()]):
            with pytest.raises(TooLarge):
                await engine.metadata.commit(*changes)
        assert await engine.metadata.get(Job, JOB) == as_stored(large)
        assert await engine.metadata.get(Run, RUN) is None

    async def test_committing_nothing_is_fine(self, engine: Engine) -> None:
        await engine.metadata.commit()


class IdempotencyContract:
    async def test_a_claimed_key_gives_its_answer_back(self, engine: Engine) -> None:
        record = an_idempotency_record(body=b'{"\xc3\xbc":0}\x00', fingerprint=bytes(range(32)))
        await engine.metadata.commit(record)
        assert await engine.metadata.get(IdempotencyRecord, (CALLER, "key")) == record

    async def test_keys_belong_to_their_caller(self, engine: Engine) -> None:
        await engine.metadata.commit(an_idempotency_record())
        assert await engine.metadata.get(IdempotencyRecord, (STRANGER, "key")) is None

        await engine.metadata.commit(an_idempotency_record(caller=STRANGER, status=202))

        assert (
            await engine.metadata.get(IdempotencyRecord, (CALLER, "key")) == an_idempotency_record()
        )

    @pytest.mark.parametrize("fingerprint", [b"fingerprint", b"another"])
    async def test_a_standing_claim_keeps_its_key(self, engine: Engine, fingerprint: bytes) -> None:
        await engine.metadata.commit(an_idempotency_record())
        await engine.pass_time(_life_of_a_claim(engine) - SECOND)

        with pytest.raises(KeyTaken):
            await engine.metadata.commit(an_idempotency_record(fingerprint=fingerprint))

        assert (
            await engine.metadata.get(IdempotencyRecord, (CALLER, "key")) == an_idempotency_record()
        )

    async def test_a_taken_key_takes_all_others_with_it(self, engine: Engine) -> None:
        await engine.metadata.commit(an_idempotency_record())

        with pytest.raises(KeyTaken):
            await engine.metadata.commit(a_job(), a_run(), an_idempotency_record())

        assert await engine.metadata.get(Job, JOB) is None
        assert await engine.metadata.get(Run, RUN) is None

    async def test_a_taken_key_is_reported_before_a_stale_row(self, engine: Engine) -> None:
        await engine.metadata.commit(a_job(), a_run(), an_idempotency_record())

        with pytest.raises(KeyTaken):
            await engine.metadata.commit(a_job(), a_run(version=9), an_idempotency_record())

    async def test_an_expired_claim_is_gone_and_can_be_replaced(self, engine: Engine) -> None:
        await engine.metadata.commit(an_idempotency_record())
        await engine.pass_time(_life_of_a_claim(engine) + SECOND)
        assert await engine.metadata.get(IdempotencyRecord, (CALLER, "key")) is None
        new = an_idempotency_record(status=202, expires_at=engine.clock.now() + SECOND)

        await engine.metadata.commit(new)

        assert await engine.metadata.get(IdempotencyRecord, (CALLER, "key")) == new

    async def test_expired_claims_are_cleared_so_many_at_a_time(self, engine: Engine) -> None:
        await engine.metadata.commit(*[an_idempotency_record(key=f"old {n}") for n in range(5)])
        await engine.pass_time(_life_of_a_claim(engine))
        standing = an_idempotency_record(key="new", expires_at=engine.clock.now() + SECOND)
        await engine.metadata.commit(standing)

        cleared = [await engine.metadata.clear_expired(limit=3) for _ in range(3)]

        assert cleared == [3, 2, 0] or engine.expires_itself
        assert await engine.metadata.get(IdempotencyRecord, (CALLER, "new")) == standing

    async def test_of_claims_at_the_same_time_one_wins(self, engine: Engine) -> None:
        async with asyncio.TaskGroup() as group:
            tries = [
                group.create_task(_wins(engine.metadata, an_idempotency_record(status=200 + n)))
                for n in range(5)
            ]

        assert [each.result() for each in tries].count(True) == 1
        record = await engine.metadata.get(IdempotencyRecord, (CALLER, "key"))
        assert record is not None
        assert tries[record.status - 200].result()


class MetadataContract(
    KindsContract,
    CommittingContract,
    IdempotencyContract,
    ListingContract,
    ChangedRunsContract,
    DueContract,
    UsageContract,
):
    """All that steps rely on. An engine passes by providing an `engine` fixture."""


async def _get(engine: Engine, row: Row) -> Row | None:
    return await engine.metadata.get(type(row), key_of(row))


async def _wins(metadata: Metadata, change: Change) -> bool:
    try:
        await metadata.commit(change)
    except (Stale, KeyTaken):
        return False
    return True


def _life_of_a_claim(engine: Engine) -> timedelta:
    return an_idempotency_record().expires_at - engine.clock.now()


def _rich(kind: type[Row], **changes: object) -> Any:
    """A row of the kind with a value in every field that may have one."""
    return msgspec.structs.replace(KINDS[kind](**RICH[kind]), **changes)
