"""SegmentStore and memory, told the same, say the same: over rolls, removals, reclaiming, deaths and lost indexes."""

import asyncio
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import SegmentStore
from conveyor.ports.bodies import Bodies, Body, BodyName
from conveyor.testing.clock import FakeIds
from conveyor.testing.memory.bodies import MemoryBodies
from tests.harness.segments import JOB, RUNS, a_name, a_page, opened, segments_of, told_by_warcio
from tests.seed import examples

NAMES = st.builds(
    a_name, st.integers(0, 9), run=st.integers(0, 1), claim_no=st.sampled_from([1, 2, 11])
)
MIDDLE = (a_name(4).task_id, 1)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.place = Path(mkdtemp())
        self.life = 0
        self.folder = self.place / "0"
        self.memory = MemoryBodies()
        self.locators: dict[BodyName, tuple[str, str]] = {}
        self.large: set[BodyName] = set()
        self.reclaimed = True
        self._open()

    def teardown(self) -> None:
        self.stack.close()
        for path in segments_of(self.folder / "packs"):
            told_by_warcio(path)
        shutil.rmtree(self.place)
        self.loop.close()

    @rule(names=st.lists(NAMES, min_size=1, max_size=5, unique=True), size=st.integers(0, 4_000))
    def put(self, names: list[BodyName], size: int) -> None:
        small = [name for name in names if name not in self.large]  # a claim has one body
        put = [Body(name, a_page(size + number, size)) for number, name in enumerate(small)]
        # A store of one process replaces the body of a name; the memory keeps both, as shared ones do.
        self.loop.run_until_complete(self.memory.discard(small))
        mine, theirs = self._both(lambda home: home.put_many(put))
        for name, one, other in zip(small, mine, theirs, strict=True):
            assert (one.length, one.checksum) == (other.length, other.checksum)
            self.locators[name] = (one.locator, other.locator)

    @rule(name=NAMES, size=st.integers(0, 4_000))
    def put_large(self, name: BodyName, size: int) -> None:
        """One that went through a spool."""
        if name not in self.locators:
            mine, theirs = self._both(lambda home: _put_spooled(home, name, a_page(size, size)))
            self.locators[name] = (mine.locator, theirs.locator)
            self.large.add(name)

    @rule(names=st.lists(NAMES, max_size=8, unique=True))
    def discard(self, names: list[BodyName]) -> None:
        self._same(lambda home: home.discard(names))
        self.reclaimed = False

    @rule(run=st.integers(0, 1), limit=st.integers(1, 12))
    def delete_run(self, run: int, limit: int) -> None:
        """To its end: which go first is nobody's business."""
        while True:
            mine, theirs = self._both(lambda home: home.delete_run(JOB, RUNS[run], limit=limit))
            assert mine == theirs
            if mine < limit:
                break
        self.reclaimed = False

    @rule()
    def reclaim(self) -> None:
        self.loop.run_until_complete(self.store.reclaim())
        self.reclaimed = True

    @rule()
    def start_again(self) -> None:
        self.stack.close()
        self._open()

    @rule()
    def die(self) -> None:
        """Go on with what lies there at this moment, as after a SIGKILL."""
        self.life += 1
        shutil.copytree(self.folder, self.place / str(self.life))
        self.stack.close()
        self.folder = self.place / str(self.life)
        self._open()

    @precondition(lambda self: self.reclaimed)
    @rule()
    def lose_the_index(self) -> None:
        self.stack.close()
        (self.folder / "packs" / "index.db").unlink()
        self._open()

    @invariant()
    def both_say_the_same(self) -> None:
        self._same(lambda home: home.runs_held(limit=9))
        for run in RUNS[:2]:
            self._same(lambda home, run=run: home.names(JOB, run, limit=99))
            self._same(lambda home, run=run: home.names(JOB, run, limit=3, after=MIDDLE))
        mine, theirs = zip(*self.locators.values(), strict=True) if self.locators else ((), ())
        ours = self.loop.run_until_complete(self.bodies.load_many(mine))
        assert list(ours) == list(self.loop.run_until_complete(self.memory.load_many(theirs)))

    def _open(self) -> None:
        self.stack = ExitStack()
        opening = opened(self.folder / "packs", sync=False, segment_size=9_000)
        self.store: SegmentStore = self.stack.enter_context(opening)
        self.bodies = SegmentBodies(self.store, FileBodies(self.folder, FakeIds(), sync=False))

    def _both(self, ask: Any) -> tuple[Any, Any]:
        homes: tuple[Bodies, ...] = (self.bodies, self.memory)
        mine, theirs = (self.loop.run_until_complete(ask(home)) for home in homes)
        return mine, theirs

    def _same(self, ask: Any) -> None:
        mine, theirs = self._both(ask)
        assert mine == theirs


async def _put_spooled(home: Bodies, name: BodyName, content: bytes) -> Any:
    spool = home.spool()
    await spool.write(content)
    [kept] = await home.put_many([Body(name, spool)])
    return kept


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
