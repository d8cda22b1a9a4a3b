"""The notice a running service leaves in its folder, for operators on the same machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

NAME = "operator.json"

log = structlog.get_logger()


class Notice(msgspec.Struct, frozen=True):
    """Where the owner of the folder is to be asked, and what proves that one may."""

    url: str
    token: str


@contextmanager
def posted(folder: Path, notice: Notice) -> Iterator[None]:
    """Leave a notice, readable by the owner only, for as long as the block runs.

    On a full disk the service runs without one: callers can still read and delete.
    """
    path = folder / NAME
    try:
        _write(path, notice)
    except OSError as error:
        log.warning("operator.notice.unwritten", file=str(path), why=error.strerror)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, notice: Notice) -> None:
    draft = path.with_name(f"{NAME}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(notice))
    finally:
        os.close(descriptor)
    draft.rename(path)


def read_notice(folder: Path) -> Notice | None:
    """The notice in a folder; None when there is none that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Notice)
    except (OSError, msgspec.MsgspecError):
        return None
