"""The notice by which operators find a running service."""

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.files.service_info import ServiceInfo, published, read_service_info

SERVICE_INFO = ServiceInfo("http://127.0.0.1:1", "token")


def test_a_notice_is_there_for_as_long_as_the_service_runs(tmp_path: Path) -> None:
    with published(tmp_path, SERVICE_INFO):
        assert read_service_info(tmp_path) == SERVICE_INFO
    assert read_service_info(tmp_path) is None


def test_a_service_runs_without_a_notice_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with capture_logs() as logs, published(tmp_path, SERVICE_INFO):
        assert read_service_info(tmp_path) is None
    [line] = logs
    assert (line["event"], line["why"]) == (
        "operator.service_info.unwritten",
        "No space left on device",
    )
