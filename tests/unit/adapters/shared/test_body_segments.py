"""Segments of bodies: keys and locators are stored in rows, and must not change."""

import hashlib

import msgspec
import pytest

from conveyor.adapters.shared import body_segments
from conveyor.adapters.shared.body_segments import (
    SegmentKey,
    grouped,
    located,
    names_in,
    new_segment,
    removable,
    segment_of,
    ungrouped,
)
from conveyor.domain.ids import RunId, task_ids
from conveyor.ports.bodies import Body, BodyName, Kept
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import JOB, OTHER_RUN, RUN

FOLDER = f"jobs/{JOB}/runs/{RUN}/segments"


def test_a_segment_has_the_bodies_then_its_index_and_a_key_that_tells_them() -> None:
    put = [_body(n, content) for n, content in ((300, b"a"), (2, b""), (16, b"bcd"))]

    segment = new_segment(put, FakeIds())

    nonce = segment.key.rpartition(".")[2]
    assert segment.key == f"{FOLDER}/00000002-0000012c.3.4.{nonce}"
    assert len(nonce) == 10
    index = msgspec.json.encode([(body.name.task_id, 1) for body in put])
    assert segment.content == b"abcd" + index
    assert names_in(JOB, RUN, index) == [body.name for body in put]
    assert segment.kept("s3:")[2] == Kept(
        f"s3:{segment.key}#1+3", 3, hashlib.sha256(b"bcd").hexdigest()
    )
    assert segment_of(segment.key) == SegmentKey(segment.key, "00000002", "0000012c", 3, 4)


@pytest.mark.parametrize(
    "key",
    [
        f"jobs/{JOB}/runs/{RUN}/00000002-0000012c.3.4.a",
        f"{FOLDER}/00000002-0000012c.3.4",
        f"{FOLDER}/00000002-0000012C.3.4.a",
        f"{FOLDER}/2-3.3.4.a",
        f"{FOLDER}/notes.txt",
        "notes.txt",
    ],
)
def test_another_key_is_not_a_segment(key: str) -> None:
    assert segment_of(key) is None


def test_a_locator_names_an_object_or_a_part_of_one() -> None:
    assert located("file:jobs/a", "file:") == ("jobs/a", None)
    assert located("file:jobs/a#0+0", "file:") == ("jobs/a", (0, 0))
    assert located("s3:jobs/a#12+345", "s3:") == ("jobs/a", (12, 345))
    assert located("s3:jobs/a", "file:") is None


def test_bodies_of_one_run_share_a_segment_up_to_its_largest_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_segments, "LARGEST_SEGMENT", 8)
    put = [_body(n, b"four", run) for n, run in ((0, RUN), (1, OTHER_RUN), (2, RUN), (3, RUN))]

    groups = list(grouped(put, packs=True))

    assert groups == [[0, 2], [3], [1]]
    assert list(grouped(put, packs=False)) == [[0], [1], [2], [3]]
    stored = [[Kept(str(n), 0, "") for n in group] for group in groups]
    assert [kept.locator for kept in ungrouped(groups, stored)] == ["0", "1", "2", "3"]


def test_a_segment_is_removed_once_all_its_bodies_are() -> None:
    segment = f"{FOLDER}/00000002-0000012c.3.4.a"
    assert removable([segment, "jobs/b", segment]) == ["jobs/b"]
    assert removable([segment] * 3) == [segment]


def _body(index: int, content: bytes, run_id: RunId = RUN) -> Body:
    return Body(BodyName(JOB, run_id, task_ids(run_id)(index), 1), content)
