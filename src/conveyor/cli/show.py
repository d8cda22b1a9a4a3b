"""What commands print: tables on a terminal, tab-separated text on a pipe, JSON when asked."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

INTERRUPTED = 130
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
COLOURS = {"completed": "green", "successful": "green", "failed": "red", "stopped": "yellow"}

Row = Sequence[object]


def on_terminal() -> bool:
    return sys.stdout.isatty()


def raw(content: bytes) -> None:
    """The API's own JSON, on a line."""
    sys.stdout.write(content.decode() + "\n")
    sys.stdout.flush()


def table(heads: Sequence[str], rows: Iterable[Row]) -> None:
    if not on_terminal():
        tabbed(rows)
        return
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for number, head in enumerate(heads):
        # The first column is an id, to be copied in one piece.
        drawn.add_column(head, overflow="fold", no_wrap=not number)
    for row in rows:
        drawn.add_row(*map(_cell, row))
    Console().print(drawn)


def tabbed(rows: Iterable[Row]) -> None:
    for row in rows:
        print("\t".join(map(plain, row)))


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values; the names are no heading, so that pipes get them too."""
    if not on_terminal():
        tabbed(pairs)
        return
    drawn = Table(box=None, show_header=False, pad_edge=False)
    drawn.add_column(style="bold")
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        drawn.add_row(Text(name), _cell(value))
    Console().print(drawn)


def aside(text: str) -> None:
    """A word to a person: not to a pipe, nor among the output."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """What may be left with Ctrl-C; the hint tells how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{hint}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def plain(value: object) -> str:
    """A value on one line and in one column, without the power to steer a terminal."""
    return CONTROL.sub(" ", str(value))


def duration(taken: timedelta) -> str:
    seconds = taken.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def _cell(value: object) -> Text:
    text = plain(value)
    return Text(text, style=COLOURS.get(text, ""))
