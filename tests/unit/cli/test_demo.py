"""The demo and the folder that it is given."""

from pathlib import Path

import pytest

from conveyor.cli import demo
from conveyor.errors import RefusedToStart


class _Started(Exception):
    """The demo got as far as starting the service."""


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise _Started

    monkeypatch.setattr(demo, "_service", start)


def test_a_folder_that_the_demo_did_not_make_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "thesis.txt"
    mine.write_text("years of work")
    with pytest.raises(RefusedToStart, match="name another folder with --data"):
        demo.run_demo(1, str(tmp_path))
    with pytest.raises(RefusedToStart, match="name another folder with --data"):
        demo.run_demo(1, str(mine))
    assert mine.read_text() == "years of work"


def test_a_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    target, outside = tmp_path / "demo", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    with pytest.raises(_Started):
        demo.run_demo(1, str(target))
    (target / "pages").mkdir()
    (target / "pages" / "1.html").touch()
    (target / "results.ndjson").touch()
    (target / "link").symlink_to(outside)
    with pytest.raises(_Started):
        demo.run_demo(1, str(target))
    assert [path.name for path in target.iterdir()] == [demo.MARKER]
    assert (outside / "kept").exists()


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    with pytest.raises(_Started):
        demo.run_demo(1, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [demo.MARKER]
