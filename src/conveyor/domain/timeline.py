"""Timelines: how many tasks of a run succeeded and failed in each interval of time.

A small run is counted from all its rows. Of a large one only a sample of the rows is known, evenly
spaced by index, with the exact counts of the run. Tasks that are neighbours by index often end
together, so the endings of a sample come in groups, with nothing between them. So a sample is not
counted: it gives points in time by which a known share of the tasks had ended, and the counts are
spread evenly between two points.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, count, pairwise

import msgspec

MOST_INTERVALS = 120
DAY = 86_400
# Seconds of an interval, and then whole days.
LENGTHS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200)
NEIGHBOURS = 16  # endings of a sample for each point, as many as the rows that are read at a place


class Ending(msgspec.Struct, frozen=True, gc=False):
    """When a task became final, and how."""

    at: datetime
    failed: bool = False


class TimelineInterval(msgspec.Struct, frozen=True, gc=False):
    started_at: datetime
    successful: int
    failed: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Contiguous intervals from that of the first ending on."""

    seconds: int = LENGTHS[0]  # of an interval
    until: datetime | None = None  # the last ending, or later; None while no task has ended
    intervals: tuple[TimelineInterval, ...] = ()
    rows: int = 0  # final ones that it rests on
    is_estimated: bool = False


def counted(endings: Sequence[Ending], *, until: datetime | None) -> Timeline:
    """The timeline of all endings of a run, up to the last of them or a later time."""
    if not endings:
        return Timeline()
    last = max(ending.at for ending in endings)
    until = max(until or last, last)
    seconds, starts = _grid(min(ending.at for ending in endings), until)
    successful, failed = [0] * len(starts), [0] * len(starts)
    for ending in endings:
        into = failed if ending.failed else successful
        into[bisect_right(starts, ending.at.timestamp()) - 1] += 1
    return Timeline(
        seconds=seconds,
        until=until,
        intervals=_intervals(starts, successful, failed),
        rows=len(endings),
    )


def estimated(
    sample: Sequence[Ending], *, successful: int, failed: int, first: datetime, until: datetime
) -> Timeline:
    """The timeline of a run with these counts, from a sample of its endings.

    All of them are between `first` and `until`. Where the sample has no failure, or no success, all
    of its endings tell when those were.
    """
    if not successful + failed:
        return Timeline()
    seconds, starts = _grid(first, until)
    ends = [*starts[1:], starts[-1] + seconds]

    def spread(total: int, times: Sequence[float]) -> list[int]:
        known = sorted(times) or sorted(ending.at.timestamp() for ending in sample)
        points = _points(known, first.timestamp(), until.timestamp())
        # Sums are rounded, not parts: so the parts add up to the total.
        sums = [0, *(round(total * _share(points, end)) for end in ends)]
        return [after - before for before, after in pairwise(sums)]

    succeeded = [ending.at.timestamp() for ending in sample if not ending.failed]
    failures = [ending.at.timestamp() for ending in sample if ending.failed]
    return Timeline(
        seconds=seconds,
        until=until,
        intervals=_intervals(starts, spread(successful, succeeded), spread(failed, failures)),
        rows=len(sample),
        is_estimated=True,
    )


def places(end: int, number: int) -> Iterator[int]:
    """Indexes below `end`, in the middle of as many equal parts."""
    return ((2 * part + 1) * end // (2 * number) for part in range(number))


def _grid(first: datetime, last: datetime) -> tuple[int, list[int]]:
    """The shortest round length that gives few intervals, and their starts since the epoch."""
    for seconds in chain(LENGTHS, count(DAY, DAY)):
        starts = _starts(first, last, seconds)
        if len(starts) <= MOST_INTERVALS:
            break
    return seconds, list(starts)


def _starts(first: datetime, last: datetime, seconds: int) -> range:
    """Multiples of the length, so that the intervals of two timelines are the same."""
    begin, end = int(first.timestamp()), int(last.timestamp())
    return range(begin // seconds * seconds, end + 1, seconds)


def _points(times: Sequence[float], first: float, last: float) -> list[tuple[float, float]]:
    """Times with the share of the endings before each of them."""
    groups = [times[start : start + NEIGHBOURS] for start in range(0, len(times), NEIGHBOURS)]
    middles = [
        (group[len(group) // 2], (number * NEIGHBOURS + len(group) / 2) / len(times))
        for number, group in enumerate(groups)
    ]
    return [(first, 0.0), *middles, (last, 1.0)]


def _share(points: Sequence[tuple[float, float]], at: float) -> float:
    """The share of the endings before a time that is above the first point."""
    after = bisect_right(points, at, key=lambda point: point[0])
    if after == len(points):
        return 1.0
    (began, low), (ended, high) = points[after - 1], points[after]
    return low + (high - low) * (at - began) / (ended - began)


def _intervals(
    starts: Sequence[int], successful: Sequence[int], failed: Sequence[int]
) -> tuple[TimelineInterval, ...]:
    return tuple(
        TimelineInterval(datetime.fromtimestamp(start, UTC), good, bad)
        for start, good, bad in zip(starts, successful, failed, strict=True)
    )
