"""`make screenshots`, into a folder of its own: every picture shows something."""

import zlib
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.docs.screenshots import HEIGHTS, LOOKS, take_all

pytestmark = [pytest.mark.browser, pytest.mark.long]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LEAST_VALUES = 60  # different bytes of all pixels; a blank page has a handful


def test_each_page_is_pictured_in_each_look(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    take_all(browser, tmp_path / "data", folder, followed_for=0)
    expected = {f"{name}-{look}.png" for name in HEIGHTS for look in LOOKS}
    assert {file.name for file in folder.iterdir()} == expected
    values = {file.name: len(set(pixels(file.read_bytes()))) for file in folder.iterdir()}
    assert {name: found for name, found in values.items() if found < LEAST_VALUES} == {}


def test_a_blank_page_would_be_noticed(browser: Browser) -> None:
    with browser.new_page() as page:
        assert len(set(pixels(page.screenshot()))) < LEAST_VALUES


def pixels(png: bytes) -> bytes:
    """The bytes of all pixels, as differences to their neighbours."""
    assert png.startswith(SIGNATURE)
    at, data = len(SIGNATURE), b""
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12  # with its length, name and checksum
    return zlib.decompress(data)
