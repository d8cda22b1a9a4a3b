"""The file by which operator commands find the service that owns a data folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from conveyor.adapters.shared.disk import replace_file

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
        # Not synced: it is of use only while this process runs.
        replace_file(path, msgspec.json.encode(info), sync=False)
    except OSError as error:
        log.warning("operator.service_info.unwritten", file=str(path), why=error.strerror)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_service_info(folder: Path) -> ServiceInfo | None:
    """The service info in a folder; None when there is none that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=ServiceInfo)
    except (OSError, msgspec.MsgspecError):
        return None
