"""Timelines: every ending is counted once, in contiguous intervals of a round length."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.timeline import (
    DAY,
    LENGTHS,
    MOST_INTERVALS,
    NEIGHBOURS,
    Ending,
    Timeline,
    counted,
    estimated,
    places,
)

BEGAN = datetime(2026, 11, 18, 12, tzinfo=UTC)


def _after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


TIMES = st.floats(0, 400 * DAY).map(_after) | st.floats(0, 300).map(_after)
ENDINGS = st.lists(st.builds(Ending, TIMES, st.booleans()), max_size=60)


def _check_grid(timeline: Timeline, first: datetime, last: datetime) -> None:
    starts = [interval.started_at for interval in timeline.intervals]
    length = timedelta(seconds=timeline.seconds)
    assert 1 <= len(starts) <= MOST_INTERVALS
    assert all(after - before == length for before, after in pairwise(starts))
    assert starts[0] <= first < starts[0] + length
    assert starts[-1] <= last < starts[-1] + length
    assert timeline.seconds in LENGTHS or timeline.seconds % DAY == 0


def _sums(timeline: Timeline) -> tuple[int, int]:
    intervals = timeline.intervals
    return sum(one.successful for one in intervals), sum(one.failed for one in intervals)


@given(ENDINGS.filter(bool), st.none() | TIMES, st.randoms())
def test_all_endings_are_counted_in_any_order(
    endings: list[Ending], until: datetime | None, chance: object
) -> None:
    timeline = counted(endings, until=until)
    times = [ending.at for ending in endings]
    assert timeline.until == max([*times, *([until] if until else [])])
    _check_grid(timeline, min(times), timeline.until)
    failed = sum(ending.failed for ending in endings)
    assert _sums(timeline) == (len(endings) - failed, failed)
    assert (timeline.rows, timeline.is_estimated) == (len(endings), False)
    chance.shuffle(endings)  # type: ignore[attr-defined]
    assert counted(endings, until=until) == timeline


@given(
    ENDINGS,
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.tuples(TIMES, TIMES).map(sorted),
    st.randoms(),
)
def test_an_estimate_adds_up_to_the_exact_counts(
    sample: list[Ending], successful: int, failed: int, bounds: list[datetime], chance: object
) -> None:
    first = min([bounds[0], *(ending.at for ending in sample)])
    until = max([bounds[1], *(ending.at for ending in sample)])
    figures = {"successful": successful, "failed": failed, "first": first, "until": until}
    timeline = estimated(sample, **figures)  # type: ignore[arg-type]
    if successful + failed == 0:
        assert timeline == Timeline()
        return
    _check_grid(timeline, first, until)
    assert _sums(timeline) == (successful, failed)
    assert all(one.successful >= 0 and one.failed >= 0 for one in timeline.intervals)
    assert (timeline.rows, timeline.is_estimated) == (len(sample), True)
    chance.shuffle(sample)  # type: ignore[attr-defined]
    assert estimated(sample, **figures) == timeline  # type: ignore[arg-type]


def test_the_length_of_the_intervals_is_round() -> None:
    lengths = {
        0: 1,
        119: 1,
        120: 2,
        3_000: 30,
        10 * 3_600: 600,
        60 * DAY - 1: 43_200,
        119 * DAY: DAY,
        1_000 * DAY: 9 * DAY,
    }
    for seconds, length in lengths.items():
        endings = [Ending(BEGAN), Ending(_after(seconds))]
        assert counted(endings, until=None).seconds == length, seconds


def test_a_run_without_endings_has_no_intervals() -> None:
    assert counted([], until=BEGAN) == Timeline()
    assert Timeline().intervals == ()


def test_groups_of_neighbours_become_an_even_rate() -> None:
    """64 groups of tasks that ended together, of a run of 100 tasks a second."""
    number, span = 64, 100.0
    sample = [
        Ending(_after((2 * place + 1) * span / (2 * number)))
        for place in range(number)
        for _ in range(NEIGHBOURS)
    ]
    timeline = estimated(
        sample, successful=10_000, failed=0, first=BEGAN, until=_after(span - 0.001)
    )
    assert len(timeline.intervals) == 100
    assert all(99 <= one.successful <= 101 for one in timeline.intervals)


def test_a_pause_stays_visible() -> None:
    seconds = [n / 10 for n in range(300)] + [n / 10 for n in range(900, 1_200)]
    sample = [Ending(_after(second)) for second in seconds]
    timeline = estimated(sample, successful=60_000, failed=0, first=BEGAN, until=_after(119.9))
    done = [one.successful for one in timeline.intervals]
    assert max(done[35:85]) < 50
    assert min(done[5:25]) > 900


def test_a_sample_without_failures_takes_their_times_from_all_endings() -> None:
    sample = [Ending(_after(second)) for second in (0, 10, 20)]
    figures = {"successful": 9, "failed": 9, "first": BEGAN, "until": _after(20)}
    timeline = estimated(sample, **figures)  # type: ignore[arg-type]
    assert [one.failed for one in timeline.intervals] == [
        one.successful for one in timeline.intervals
    ]


@given(st.integers(1, 10**7), st.integers(1, 100))
def test_places_are_evenly_spread_below_the_end(end: int, number: int) -> None:
    found = list(places(end, number))
    assert len(found) == number
    assert all(0 <= place < end for place in found)
    gaps = [after - before for before, after in pairwise(found)]
    assert all(abs(gap - end / number) < 1 for gap in gaps)
