"""Keyset pagination reads every page once, and a short page is not the end."""

from collections.abc import Sequence

from conveyor.steps.shared.pagination import pages, rows

STORED = ["a", "b", "c", "d", "e"]


async def read(after: str) -> Sequence[str]:
    """Pages of two rows, but of one where the first is large."""
    found = [name for name in STORED if name > after]
    return found[:1] if found[:1] == ["b"] else found[:2]


def itself(name: str) -> str:
    return name


async def test_pages_go_on_after_a_short_one_until_one_is_empty() -> None:
    assert [page async for page in pages(read, start="a", key=itself)] == [["b"], ["c", "d"], ["e"]]


async def test_rows_are_those_of_all_pages() -> None:
    assert [row async for row in rows(read, start="", key=itself)] == STORED
    assert [row async for row in rows(read, start="e", key=itself)] == []
