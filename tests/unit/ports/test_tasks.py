"""New rows are written in pieces of bounded size, wherever they come from."""

from conveyor.domain.batch import lines
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.submission import Limits
from conveyor.domain.task import TaskSpec, new_tasks, size_of
from conveyor.ports.blobs import as_stream
from conveyor.ports.tasks import PAGE_BYTES, in_chunks
from conveyor.steps.shared.row_sources import stored_tasks
from conveyor.testing.factories import RUN, a_task_spec
from conveyor.testing.memory.blobs import MemoryBlobs
from tests.harness.memory_service import CALLER, House, a_house

SMALL = a_task_spec()
LARGE = a_task_spec(params="ü" * (PAGE_BYTES // 5))  # in bytes twice as much: two fit
LARGER = a_task_spec(params="x" * (2 * PAGE_BYTES))
MANY = 150  # tasks of 60 KB: three pieces


def test_rows_are_portioned_by_their_bytes() -> None:
    rows = new_tasks(RUN, 0, [SMALL, LARGE, LARGE, LARGE, LARGER, SMALL, SMALL])

    portioned = [[row.index for row in portion] for portion in in_chunks(rows)]

    assert portioned == [[0, 1, 2], [3], [4], [5, 6]]
    assert list(in_chunks([])) == []


async def test_a_staged_list_of_large_tasks_is_read_in_small_pieces() -> None:
    blobs = MemoryBlobs()
    specs = [LARGE] * 5 + [SMALL] * 5
    await blobs.put("list", as_stream(lines(specs)))

    pieces = [piece async for piece in stored_tasks(blobs, "list", most=1_000)]

    assert [spec for read, _ in pieces for spec in read] == specs
    assert sum(length for _, length in pieces) == await blobs.length("list")
    assert [len(read) for read, _ in pieces] == [3, 7]


async def test_a_submit_of_large_tasks_writes_them_in_pieces() -> None:
    house = a_house(limits=Limits())

    await _submit_heavy(house)

    assert house.trace.of("tasks.add", "metadata.commit") == [*["tasks.add"] * 3, "metadata.commit"]


async def test_a_rerun_copies_large_tasks_whole_and_in_pieces() -> None:
    house = a_house(limits=Limits())
    job_id, run_id = await _submit_heavy(house)
    await _check_rerun(house, job_id, run_id)


async def test_a_copy_that_follows_a_rerun_does_too() -> None:
    house = a_house(limits=Limits(sync_tasks=100))
    job_id, run_id = await _submit_heavy(house)
    await house.handle_messages()
    await _check_rerun(house, job_id, run_id)


async def _check_rerun(house: House, job_id: JobId, run_id: RunId) -> None:
    await house.lifecycle.stop(CALLER, job_id)
    house.trace.forget()

    again, retried, _ = await house.rerun(job_id)
    await house.handle_messages()

    first, copies = await _specs(house, run_id), await _specs(house, again)
    assert (retried, len(first)) == (MANY, MANY)
    assert copies == first
    assert all(spec.params and spec.metadata for spec in copies)
    assert house.trace.of("tasks.add") == ["tasks.add"] * 3


async def _submit_heavy(house: House) -> tuple[JobId, RunId]:
    metadata = {f"key{n}": "x" * 1_000 for n in range(20)}
    params = {"css_extractor": "x" * 40_000}
    tasks = [
        {"url": f"https://ok.example/{n}", "metadata": metadata, "zenrows_params": params}
        for n in range(MANY)
    ]
    return await house.submit(0, tasks=tasks)


async def _specs(house: House, run_id: RunId) -> list[TaskSpec]:
    """Page by page, each of which fits."""
    found, after = list[TaskSpec](), -1
    while True:
        page = await house.tasks.page(run_id, limit=MANY, after=after, whole=True)
        assert sum(map(size_of, page.tasks)) <= PAGE_BYTES
        found += [task.spec for task in page.tasks]
        if page.cursor is None:
            return found
        after = page.cursor
