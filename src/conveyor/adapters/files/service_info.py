"""The file by which commands of an operator find the service that holds a data folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

NAME = "operator.json"

log = structlog.get_logger()


class ServiceInfo(msgspec.Struct, frozen=True):
    """The address of the service, and the token that its operator paths require."""

    url: str
    token: str


@contextmanager
def published(folder: Path, info: ServiceInfo) -> Iterator[None]:
    """Keep the file, readable by its owner only, while the block runs.

    On a full disk the service runs without it: callers can still read and delete.
    """
    path = folder / NAME
    try:
        _write(path, info)
    except OSError as error:
        log.warning("operator.service_info.unwritten", file=str(path), why=error.strerror)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, info: ServiceInfo) -> None:
    draft = path.with_name(f"{NAME}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(info))
    finally:
        os.close(descriptor)
    draft.rename(path)


def read_service_info(folder: Path) -> ServiceInfo | None:
    """The service info in a folder; None when there is none that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=ServiceInfo)
    except (OSError, msgspec.MsgspecError):
        return None
