"""How many tasks of a run may wait for its engine."""

from conveyor.steps.dispatch.write_window import (
    FIRST_WINDOW,
    LEAST_WINDOW,
    MOST_CLAIMED,
    SLOW_WRITE,
    STEP,
    WriteWindow,
)

FAST, SLOW = SLOW_WRITE / 2, SLOW_WRITE * 2


def test_each_slow_write_halves_the_window_down_to_a_batch() -> None:
    window = WriteWindow(500)
    window.learn(SLOW)
    assert window.size == FIRST_WINDOW // 2
    for _ in range(10):
        window.learn(SLOW)
    assert window.size == LEAST_WINDOW


def test_other_writes_enlarge_it_up_to_the_places_of_the_process() -> None:
    window = WriteWindow(500, size=LEAST_WINDOW)
    window.learn(FAST)
    assert window.size == LEAST_WINDOW + STEP
    for _ in range(100):
        window.learn(FAST)
    assert window.size == 500


def test_tasks_that_wait_to_be_claimed_or_settled_take_its_room() -> None:
    window = WriteWindow(500, size=30)
    assert window.room(pending=0, finished=0) == 30
    assert window.room(pending=10, finished=5) == 15
    assert window.room(pending=0, finished=40) < 0


def test_a_claim_is_small_however_large_the_window() -> None:
    assert WriteWindow(500, size=500).room(pending=0, finished=0) == MOST_CLAIMED
    assert WriteWindow(500, size=500).room(pending=MOST_CLAIMED, finished=0) == 0
