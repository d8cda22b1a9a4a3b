"""A disk that runs full in the middle of a write."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def a_disk_with_room_for(room: int, number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes stop short when the room runs out, and fail from then on."""
    really, left = os.write, room

    def write(descriptor: int, content: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(number, os.strerror(number))
        written = really(descriptor, content[:left])
        left -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        yield
