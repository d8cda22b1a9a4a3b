"""Progress bars: drawn on stderr, and only where stderr is a terminal."""

import sys
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Bar(Progress):
    """The base of every bar. Data on stdout is never touched.

    By default rich replaces `sys.stdout` while a bar is drawn and prints what is written there
    through the bar's console. With stdout redirected to a file, the file would stay empty.
    """

    def __init__(
        self, *columns: str | ProgressColumn, hidden: bool = False, transient: bool = False
    ) -> None:
        super().__init__(
            *columns,
            console=Console(stderr=True),
            redirect_stdout=False,
            transient=transient,
            disable=hidden or not sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        super().__enter__()
        return self


class UploadBar(Bar):
    """Bytes sent, their rate, and the time left unless the list is a stream of unknown length."""

    def __init__(self, length: int | None, *, hidden: bool) -> None:
        left = () if length is None else (TextColumn("left:"), TimeRemainingColumn())
        super().__init__(
            TextColumn("uploading"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            *left,
            hidden=hidden,
        )
        self._task = self.add_task("uploading", total=length)

    def sent(self, count: int) -> None:
        self.advance(self._task, count)


class CopyBar(Bar):
    """Bytes copied, their rate and the time left."""

    def __init__(self, *, hidden: bool) -> None:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        super().__init__(TextColumn("copying"), *columns, hidden=hidden, transient=True)
        self._task = self.add_task("copying", total=None)

    def copied(self, done: int, total: int) -> None:
        self.update(self._task, completed=done, total=total)


class DownloadBar(Bar):
    """A bar without a total while the service makes the file; then the bytes received."""

    def __init__(self, *, hidden: bool) -> None:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        super().__init__(TextColumn("{task.description}"), *columns, hidden=hidden)
        self._task = self.add_task("making the file", total=None)

    def received(self, done: int, total: int | None) -> None:
        self.update(self._task, description="downloading", completed=done, total=total)
