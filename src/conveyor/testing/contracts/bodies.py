"""What every store of result bodies must do."""

import asyncio
import hashlib

import pytest

from conveyor.domain.ids import JobId, RunId
from conveyor.errors import NotFound
from conveyor.ports.bodies import Bodies, Body, BodyName, Kept, Spool
from conveyor.testing.contracts.engine import joined
from conveyor.testing.factories import JOB, OTHER_RUN, RUN, new_tasks

CONTENTS = [b"", b"x", bytes(range(256)) * 4000]


class BodiesContract:
    """A store passes by providing a `bodies` fixture."""

    async def test_bodies_come_back_as_they_were_put(self, bodies: Bodies) -> None:
        put = [Body(_name(n), content) for n, content in enumerate(CONTENTS)]

        all_kept = await bodies.put_many(put)

        assert [await _read(bodies, kept) for kept in all_kept] == CONTENTS

    @pytest.mark.parametrize("content", CONTENTS)
    async def test_a_stored_body_is_returned_with_its_length_and_checksum(
        self, bodies: Bodies, content: bytes
    ) -> None:
        spool = await _spooled(bodies, content)

        for kept in await bodies.put_many([Body(_name(0), content), Body(_name(1), spool)]):
            assert kept.length == len(content)
            assert kept.checksum == hashlib.sha256(content).hexdigest()

    async def test_many_are_loaded_whole_in_the_order_asked_for(self, bodies: Bodies) -> None:
        kept = await bodies.put_many([Body(_name(n), body) for n, body in enumerate(CONTENTS)])
        [gone] = await bodies.put_many([Body(_name(9), b"gone")])
        await bodies.discard([_name(9)])

        locators = [one.locator for one in reversed([*kept, gone])]

        assert list(await bodies.load_many(locators)) == [None, *reversed(CONTENTS)]
        assert list(await bodies.load_many([])) == []

    async def test_putting_nothing_gives_nothing(self, bodies: Bodies) -> None:
        assert list(await bodies.put_many([])) == []

    async def test_claims_of_a_task_do_not_overwrite_each_other(self, bodies: Bodies) -> None:
        [first] = await bodies.put_many([Body(_name(0, claim_no=1), b"first")])
        [second] = await bodies.put_many([Body(_name(0, claim_no=2), b"second")])

        assert await _read(bodies, first) == b"first"
        assert await _read(bodies, second) == b"second"

    async def test_a_body_put_again_is_there_once(self, bodies: Bodies) -> None:
        await bodies.put_many([Body(_name(0), b"page")])
        [kept] = await bodies.put_many([Body(_name(0), b"page")])

        assert await _read(bodies, kept) == b"page"

    @pytest.mark.parametrize("content", CONTENTS)
    async def test_a_spool_knows_its_length_and_checksum(
        self, bodies: Bodies, content: bytes
    ) -> None:
        spool = await _spooled(bodies, content)

        assert spool.length == len(content)
        assert spool.checksum == hashlib.sha256(content).hexdigest()
        await spool.discard()

    @pytest.mark.parametrize("content", CONTENTS)
    async def test_a_spooled_body_comes_back(self, bodies: Bodies, content: bytes) -> None:
        spool = await _spooled(bodies, content)
        [kept] = await bodies.put_many([Body(_name(0), spool)])
        assert await _read(bodies, kept) == content

    async def test_discarding_a_spool_after_its_put_does_nothing(self, bodies: Bodies) -> None:
        spool = await _spooled(bodies, b"page")
        [kept] = await bodies.put_many([Body(_name(0), spool)])

        await spool.discard()

        assert await _read(bodies, kept) == b"page"

    async def test_a_spool_may_be_discarded_twice(self, bodies: Bodies) -> None:
        spool = await _spooled(bodies, b"page")
        await spool.discard()
        await spool.discard()
        assert await bodies.delete_run(JOB, RUN, limit=9) == 0

    async def test_spools_and_bytes_are_put_side_by_side(self, bodies: Bodies) -> None:
        spool = await _spooled(bodies, b"large")

        all_kept = await bodies.put_many([Body(_name(0), b"small"), Body(_name(1), spool)])

        assert [await _read(bodies, kept) for kept in all_kept] == [b"small", b"large"]

    async def test_a_discarded_body_is_not_found(self, bodies: Bodies) -> None:
        [kept] = await bodies.put_many([Body(_name(0), b"page")])

        assert await bodies.discard([_name(0)]) == 1

        with pytest.raises(NotFound):
            await _read(bodies, kept)

    async def test_discarding_what_is_not_there_counts_nothing(self, bodies: Bodies) -> None:
        await bodies.put_many([Body(_name(0), b"page")])

        assert await bodies.discard([_name(0), _name(1), _name(0, claim_no=2)]) == 1
        assert await bodies.discard([_name(0)]) == 0
        assert await bodies.discard([]) == 0

    async def test_discarding_one_claims_body_leaves_those_of_others(self, bodies: Bodies) -> None:
        names = [_name(0, claim_no=1), _name(0, claim_no=2), _name(0, claim_no=11), _name(1)]
        first, *others = [await _put(bodies, name) for name in names]

        await bodies.discard(names[:1])

        assert [await _read(bodies, kept) for kept in others] == [b"page"] * 3
        with pytest.raises(NotFound):
            await _read(bodies, first)

    async def test_bodies_are_removed_by_their_locators(self, bodies: Bodies) -> None:
        spool = await _spooled(bodies, b"large")
        put = [Body(_name(0), b"a"), Body(_name(1), b"b"), Body(_name(2), spool)]
        gone = [kept.locator for kept in await bodies.put_many(put)]
        others = [await _put(bodies, name) for name in (_name(0, claim_no=2), _name(3))]

        await bodies.remove(gone)
        await bodies.remove(gone)
        await bodies.remove([])

        assert list(await bodies.load_many(gone)) == [None] * 3
        assert [await _read(bodies, kept) for kept in others] == [b"page"] * 2

    async def test_a_deleted_run_leaves_none_of_its_bodies(self, bodies: Bodies) -> None:
        all_kept = await bodies.put_many(
            [Body(_name(n, claim_no=claim_no), b"page") for n in range(3) for claim_no in (1, 2)]
        )

        assert await bodies.delete_run(JOB, RUN, limit=9) == 6

        for kept in all_kept:
            with pytest.raises(NotFound):
                await _read(bodies, kept)

    async def test_a_run_is_deleted_in_portions(self, bodies: Bodies) -> None:
        for n in (0, 1, 2, 5_000, 70_000):
            await _put(bodies, _name(n))

        portions = [await bodies.delete_run(JOB, RUN, limit=2) for _ in range(4)]

        assert portions == [2, 2, 1, 0]

    async def test_two_that_delete_a_run_leave_nothing_between_them(self, bodies: Bodies) -> None:
        await bodies.put_many([Body(_name(n), b"page") for n in range(100)])

        async def delete() -> None:
            while await bodies.delete_run(JOB, RUN, limit=10):
                pass
            assert list(await bodies.names(JOB, RUN, limit=9)) == []

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(delete())
        assert list(await bodies.runs_held(limit=9)) == []

    async def test_deleting_a_run_leaves_other_runs_alone(self, bodies: Bodies) -> None:
        await bodies.put_many([Body(_name(0), b"mine")])
        others = [_name(0, run_id=OTHER_RUN), _name(0, job_id=JobId("another"))]
        all_kept = await bodies.put_many([Body(name, b"other") for name in others])

        await bodies.delete_run(JOB, RUN, limit=9)

        assert [await _read(bodies, kept) for kept in all_kept] == [b"other"] * 2

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_runs_that_have_bodies_are_listed_in_order(
        self, bodies: Bodies, size: int
    ) -> None:
        places = sorted((job, run) for job in (JOB, JobId("another")) for run in (RUN, OTHER_RUN))
        names = [_name(n, job_id=job, run_id=run) for job, run in places for n in range(2)]
        await bodies.put_many([Body(name, b"page") for name in reversed(names)])
        listed = await joined(
            lambda after: bodies.runs_held(limit=size, after=after), "/".join, size=size, start=""
        )

        assert listed == places

    async def test_a_run_without_bodies_is_not_listed(self, bodies: Bodies) -> None:
        await bodies.put_many([Body(_name(0), b"page"), Body(_name(0, run_id=OTHER_RUN), b"")])
        await bodies.delete_run(JOB, RUN, limit=9)

        assert list(await bodies.runs_held(limit=9)) == [(JOB, OTHER_RUN)]
        await bodies.discard([_name(0, run_id=OTHER_RUN)])
        assert list(await bodies.runs_held(limit=9)) == []

    @pytest.mark.parametrize("size", [1, 2, 9])
    async def test_the_bodies_of_a_run_are_listed_by_name_in_order(
        self, bodies: Bodies, size: int
    ) -> None:
        claims = [(0, 1), (0, 2), (0, 11), (1, 1), (5_000, 3), (70_000, 1)]
        names = [_name(index, claim_no=claim_no) for index, claim_no in claims]
        others = [_name(2, run_id=OTHER_RUN), _name(2, job_id=JobId("another"))]
        await bodies.put_many([Body(name, b"page") for name in (*reversed(names), *others)])
        listed = await joined(
            lambda after: bodies.names(JOB, RUN, limit=size, after=after),
            lambda name: (name.task_id, name.claim_no),
            size=size,
            start=("", -1),
        )

        assert listed == names

    async def test_a_run_without_bodies_has_no_names(self, bodies: Bodies) -> None:
        assert list(await bodies.names(JOB, RUN, limit=9)) == []

    async def test_deleting_an_unknown_run_finds_nothing(self, bodies: Bodies) -> None:
        assert await bodies.delete_run(JOB, RUN, limit=9) == 0


class SharedBodiesContract:
    """What a store that processes share must do besides, by a `shared_bodies` fixture.

    After a failover of the database two processes may hold a task under one claim number.
    """

    @pytest.mark.parametrize("lost", [0, 1])
    async def test_bodies_that_two_put_under_one_name_are_removed_apart(
        self, shared_bodies: Bodies, lost: int
    ) -> None:
        for small in (True, False):
            name = _name(0 if small else 1)
            kept = list[Kept]()
            for content in (b"one", b"other"):
                put = content if small else await _spooled(shared_bodies, content)
                kept += await shared_bodies.put_many([Body(name, put)])

            await shared_bodies.remove([kept[lost].locator])

            loaded = await shared_bodies.load_many([one.locator for one in kept])
            assert list(loaded) == ([None, b"other"] if lost == 0 else [b"one", None])

    async def test_bodies_that_two_put_under_one_name_are_listed_once(
        self, shared_bodies: Bodies
    ) -> None:
        names = [_name(0), _name(1)]
        for _ in range(2):
            await shared_bodies.put_many([Body(name, b"page") for name in names])

        assert list(await shared_bodies.names(JOB, RUN, limit=9)) == names
        [one] = await shared_bodies.names(JOB, RUN, limit=1)
        assert one == names[0]


def _name(index: int, *, job_id: JobId = JOB, run_id: RunId = RUN, claim_no: int = 1) -> BodyName:
    [task] = new_tasks(run_id, 1, first=index)
    return BodyName(job_id, run_id, task.id, claim_no)


async def _put(bodies: Bodies, name: BodyName) -> Kept:
    [kept] = await bodies.put_many([Body(name, b"page")])
    return kept


async def _spooled(bodies: Bodies, content: bytes) -> Spool:
    spool = bodies.spool()
    for start in range(0, len(content), 100_000):
        await spool.write(content[start : start + 100_000])
    return spool


async def _read(bodies: Bodies, kept: Kept) -> bytes:
    return b"".join([chunk async for chunk in bodies.read(kept.locator)])
