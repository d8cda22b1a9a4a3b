"""How far, how fast, how long still."""

import pytest

from conveyor.domain.counts import Counts
from conveyor.domain.progress import WINDOW, ProgressReading, RunProgress, eta, gone, rate, slid
from conveyor.domain.run import IngestStatus, Inheritance, PauseState, RunStatus
from conveyor.testing.factories import a_run

HALF = Counts(successful=40, blocked=10)


def test_one_reading_tells_no_rate_and_two_tell_it() -> None:
    first = slid((), ProgressReading(100.0, 5))
    assert rate(first) is None
    assert rate(slid(first, ProgressReading(102.0, 8))) == 1.5


def test_the_rate_follows_the_last_seconds_only() -> None:
    window: tuple[ProgressReading, ...] = ()
    for second in range(60):  # fifty a second for half a minute, then five
        done = 50 * min(second, 30) + 5 * max(second - 30, 0)
        window = slid(window, ProgressReading(float(second), done))
    assert rate(window) == 5
    assert len(window) == WINDOW + 1


def test_a_gap_longer_than_the_window_still_has_a_rate() -> None:
    assert rate(slid(slid((), ProgressReading(0.0, 0)), ProgressReading(100.0, 50))) == 0.5


def test_the_time_left_is_what_is_left_at_this_speed() -> None:
    run = a_run(total=151, last_batch_received=True)
    assert eta(run, HALF, 10.0) == 11


@pytest.mark.parametrize(
    "state",
    [
        {"last_batch_received": False},
        {"ingest_status": IngestStatus.PENDING},
        {"pause_state": PauseState.PAUSED},
        {"status": RunStatus.STOPPED},
    ],
)
def test_the_time_left_is_not_guessed(state: dict[str, object]) -> None:
    known: dict[str, object] = {"total": 100, "last_batch_received": True}
    assert eta(a_run(**known), HALF, 10.0) == 5
    assert eta(a_run(**known | state), HALF, 10.0) is None
    assert eta(a_run(**known, inherited=Inheritance(idle=20)), HALF, 10.0) == 3
    assert eta(a_run(**known), HALF, 0.0) is None
    assert eta(a_run(**known), HALF, None) is None


def test_a_mark_changes_with_whatever_a_reader_sees() -> None:
    run = a_run(total=100, version=3)
    seen = RunProgress(run=run, settled=HALF)
    others = [
        RunProgress(run=a_run(total=100, version=5), settled=HALF),
        RunProgress(run=run, settled=HALF + Counts(successful=1)),
        RunProgress(run=run, settled=HALF + Counts(credits=1)),
        RunProgress(run=run, settled=HALF + Counts(nanos=1)),
        RunProgress(run=gone(run), settled=HALF),
    ]
    assert seen.mark == RunProgress(run=run, settled=HALF, rate=3.0, eta=9).mark
    assert len({seen.mark, *(other.mark for other in others)}) == 1 + len(others)
    assert all(other.differs_from(seen) for other in others)


def test_a_standstill_is_news_and_another_speed_is_not() -> None:
    fast, slow, still, unknown = (
        RunProgress(run=a_run(), settled=HALF, rate=speed) for speed in (9.0, 2.0, 0.0, None)
    )
    assert not slow.differs_from(fast)
    assert still.differs_from(slow)
    assert not still.differs_from(unknown)
