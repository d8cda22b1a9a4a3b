"""The notice by which operators find a running service."""

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.files.notice import Notice, posted, read_notice

NOTICE = Notice("http://127.0.0.1:1", "token")


def test_a_notice_is_there_for_as_long_as_the_service_runs(tmp_path: Path) -> None:
    with posted(tmp_path, NOTICE):
        assert read_notice(tmp_path) == NOTICE
    assert read_notice(tmp_path) is None


def test_a_service_runs_without_a_notice_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with capture_logs() as logs, posted(tmp_path, NOTICE):
        assert read_notice(tmp_path) is None
    [line] = logs
    assert (line["event"], line["why"]) == ("operator.notice.unwritten", "No space left on device")
