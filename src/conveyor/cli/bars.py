"""Progress bars: drawn on stderr, and only where stderr is a terminal."""

import sys

from rich.console import Console
from rich.progress import Progress, ProgressColumn


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
