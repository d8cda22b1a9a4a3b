"""A power cut at any moment loses nothing that was promised, and brings nothing back."""

from pathlib import Path
from random import Random

import pytest

from conveyor.adapters.segments.records import urn
from conveyor.adapters.segments.store import SegmentStore, visit_segment_store
from conveyor.ports.bodies import BodyName
from tests.harness.segments import (
    Disk,
    a_name,
    a_page,
    opened,
    sample,
    segments_of,
    told_by_warcio,
    watched,
)
from tests.seed import sampled

CUTS = 60
STEPS = 40


@pytest.mark.parametrize("seed", sampled(range(4), 1, of="power cuts"))
async def test_a_power_cut_loses_nothing_that_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = Random(seed)
    folder = tmp_path / "packs"
    with watched(folder, monkeypatch) as disk:
        for _ in range(2):
            with opened(folder, segment_size=12_000) as store:
                await _live(store, disk, dice)
    moments = sorted(dice.sample(range(len(disk.events)), CUTS))
    for number, moment in enumerate([*moments, len(disk.events)]):
        image = tmp_path / f"cut-{number}"
        disk.image(moment, dice, image)
        there, gone = _promised(disk, moment)
        with visit_segment_store(image) as store:
            await _check(store, there, gone)
        with opened(image, segment_size=12_000) as store:
            await _check(store, there, gone)
            await store.put([(a_name(9_999), b"goes on")])
            await store.reclaim()
            await _check(store, there, gone)
        # A body that nobody was promised may be torn inside, until its claim is cleared away.
        told = [told_by_warcio(path, check=False).items() for path in segments_of(image)]
        assert {(urn(name), page) for name, page in there.items()} <= set().union(*told)


async def _live(store: SegmentStore, disk: Disk, dice: Random) -> None:
    for step in range(STEPS):
        there, _ = _promised(disk, len(disk.events))
        match dice.choice(["put", "put", "put", "remove", "run", "reclaim"]):
            case "put":
                await _put(store, disk, dice)
            case "remove" if there:
                names = sample(dice, sorted(there, key=str), 6)
                disk.promise("going", names)
                await store.remove(names)
                disk.promise("gone", names)
            case "run" if step % 3 == 0:
                names = [one for one in there if one.run_id == a_name(0, run=1).run_id]
                disk.promise("going", names)
                await store.remove_run(a_name(0).job_id, a_name(0, run=1).run_id, limit=999)
                disk.promise("gone", names)
            case "reclaim":
                await store.reclaim()


async def _put(store: SegmentStore, disk: Disk, dice: Random) -> None:
    names = [
        a_name(dice.randrange(10_000), run=dice.randrange(2), claim_no=len(disk.events))
        for _ in range(dice.randrange(1, 8))
    ]
    pages = [(name, a_page(name.claim_no, dice.randrange(0, 4_000))) for name in set(names)]
    await store.put(pages)
    disk.promise("there", dict(pages))


def _promised(disk: Disk, moment: int) -> tuple[dict[BodyName, bytes], set[BodyName]]:
    """Bodies that must be there, and bodies that must not, by what callers were told so far."""
    there: dict[BodyName, bytes] = {}
    gone: set[BodyName] = set()
    for event in disk.events[:moment]:
        match event.kind:
            case "there":
                there |= event.promise
            case "going":
                there = {name: page for name, page in there.items() if name not in event.promise}
            case "gone":
                gone |= set(event.promise)
    return there, gone


async def _check(store: SegmentStore, there: dict[BodyName, bytes], gone: set[BodyName]) -> None:
    assert await store.load(list(there)) == list(there.values())
    assert not any(await store.load(list(gone)))
    listed = [
        name
        for job_id, run_id in await store.runs(limit=99, after="")
        for name in await store.names(job_id, run_id, after=("", -1), limit=9_999)
    ]
    assert there.keys() <= set(listed)
    assert not gone & set(listed)
