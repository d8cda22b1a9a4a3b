"""Messages received in vain stay away for longer each time, and come back apart."""

from conveyor.domain.concurrency import LONGEST_FUTILE_HIDING, futile_receives, hidden_for
from conveyor.testing.factories import RUN, a_task, ids_of, new_tasks

[ONE, *OTHERS] = ids_of(new_tasks(RUN, 50))


def test_it_doubles_from_five_seconds_up_to_five_minutes() -> None:
    for times, most in enumerate([5, 10, 20, 40, 80, 160, 300, 300], start=1):
        seconds = hidden_for(ONE, times).total_seconds()
        assert most * 3 / 4 <= seconds <= most
    assert hidden_for(ONE, 1_000_000) <= LONGEST_FUTILE_HIDING


def test_what_bounced_together_comes_back_apart_and_the_same_way_each_time() -> None:
    waits = {hidden_for(task_id, 4) for task_id in OTHERS}
    assert len(waits) == len(OTHERS)
    assert hidden_for(ONE, 4) == hidden_for(ONE, 4)


def test_attempts_and_lost_workers_are_no_bounces() -> None:
    assert futile_receives(a_task(), 1) == 1
    assert futile_receives(a_task(attempts=3, lost=1), 5) == 1
    assert futile_receives(a_task(attempts=3, lost=1), 9) == 5


def test_a_message_younger_than_its_task_begins_anew() -> None:
    assert futile_receives(a_task(attempts=3), 1) == 1
