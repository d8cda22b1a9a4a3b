"""What came of the rounds, counted and told. Nothing here touches a disk or a clock."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec

HEADINGS = ("peer", "version", "broker", "of the script's rate", "CPU a task", "survives a crash?", "notes")  # fmt: skip
WIDE = 5  # columns that are worth aligning; sentences follow them


class Account(msgspec.Struct, frozen=True):
    done: int
    missing: int
    doubled: int
    torn: int  # kept, but not whole


class Trial(msgspec.Struct, frozen=True):
    """One round of a peer, beside the script's in the same minute."""

    account: Account
    seconds: float
    cpu: float  # seconds: feeder, worker and broker
    script_rate: float
    in_time: bool = True

    @property
    def rate(self) -> float:
        return self.account.done / self.seconds if self.account.done else 0.0


class Row(msgspec.Struct, frozen=True):
    peer: str
    version: str
    broker: str
    survives: str
    notes: str
    trials: tuple[Trial, ...] = ()
    failure: str = ""


def account(files: Iterable[tuple[str, int]], *, asked: int, size: int) -> Account:
    """Of the files a peer left, as names and sizes: one named by its number is a task that was done,
    one with something after the number is the same task done again.
    """
    whole: set[str] = set()
    torn = doubled = 0
    for name, length in files:
        if not name.isdecimal():
            doubled += 1
        elif length == size:
            whole.add(name)
        else:
            torn += 1
    return Account(done=len(whole), missing=asked - len(whole), doubled=doubled, torn=torn)


def printed(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(WIDE)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), *line[WIDE:]]
        )
        for line in lines
    )


def markdown(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    ratio, cpu = (_ratio(row.trials), _cpu(row.trials)) if row.trials else ("—", "—")
    notes = "; ".join(filter(None, (row.failure, row.notes, _remarks(row.trials))))
    return row.peer, row.version, row.broker, ratio, cpu, row.survives, notes


def _ratio(trials: Sequence[Trial]) -> str:
    ratios = sorted(trial.rate / trial.script_rate for trial in trials)
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _cpu(trials: Sequence[Trial]) -> str:
    each = [trial.cpu / trial.account.done * 1000 for trial in trials if trial.account.done]
    return f"{statistics.median(each):.2f} ms" if each else "—"


def _remarks(trials: Sequence[Trial]) -> str:
    """Only what is not as it should be."""
    totals = {
        word: sum(getattr(trial.account, word) for trial in trials)
        for word in ("missing", "doubled", "torn")
    }
    told = [f"{number:,} {word}" for word, number in totals.items() if number]
    if not all(trial.in_time for trial in trials):
        told.append("stopped before all were done")
    return ", ".join(told)
