"""The circuit breaker by itself: what opens it, what closes it, and when it lets a probe through."""

from conveyor.domain.breaker import (
    AT_FAULT_FOR,
    CONFIRMED_FOR,
    EVIDENCE_LIFE,
    FEWEST_HOSTS,
    LONGEST_INTERVAL,
    MOST_REMEMBERED,
    UNEXPLAINED_FOR,
    WINDOW,
    Breaker,
    Diagnosis,
    HealthSignal,
)

HOSTS = [f"host{number}.example" for number in range(FEWEST_HOSTS)]
LATER = 100.0 + WINDOW


def failing(signal: HealthSignal, hosts: list[str]) -> Breaker:
    breaker = Breaker()
    for host in hosts:
        assert breaker.failed(100.0, signal, host)
    return breaker


def test_a_connection_that_cannot_be_made_opens_it_at_once() -> None:
    assert failing(HealthSignal.UNREACHABLE, HOSTS[:1]).is_open


def test_five_hosts_that_break_ask_for_the_gateway_itself_after_a_window() -> None:
    breaker = failing(HealthSignal.BROKEN, HOSTS)
    assert breaker.diagnose(LATER - 0.1, 50) is Diagnosis.NOTHING
    assert breaker.diagnose(LATER, 50) is Diagnosis.ASK


def test_one_host_that_breaks_is_reason_to_ask_but_one_site_without_a_connection_is_not() -> None:
    assert failing(HealthSignal.BROKEN, HOSTS[:1]).diagnose(LATER, 1) is Diagnosis.ASK
    assert failing(HealthSignal.UNCONNECTED, HOSTS[1:] * 3).diagnose(LATER, 4) is Diagnosis.NOTHING


def test_a_host_that_failed_before_another_began_and_succeeded_is_at_fault() -> None:
    breaker = failing(HealthSignal.UNEXPLAINED, HOSTS[:2])
    breaker.answered("other.example", 100.0)  # it may have been answered before the failures
    assert breaker.failed(101.0, HealthSignal.UNEXPLAINED, HOSTS[0])
    breaker.answered("other.example", 102.0)
    assert not breaker.failed(103.0, HealthSignal.UNEXPLAINED, HOSTS[0])
    assert breaker.failed(103.0, HealthSignal.UNEXPLAINED, HOSTS[1])


def test_a_host_at_fault_opens_nothing_until_it_answers_or_was_quiet_for_long() -> None:
    breaker = failing(HealthSignal.UNEXPLAINED, HOSTS[:1])
    breaker.answered("other.example", 101.0)
    assert not breaker.failed(101.0 + AT_FAULT_FOR - 1, HealthSignal.BROKEN, HOSTS[0])
    assert not breaker.failed(101.0 + 2 * AT_FAULT_FOR - 2, HealthSignal.UNEXPLAINED, HOSTS[0])
    assert breaker.diagnose(3 * AT_FAULT_FOR, 1) is Diagnosis.NOTHING
    assert breaker.failed(101.0 + 4 * AT_FAULT_FOR, HealthSignal.UNEXPLAINED, HOSTS[0])
    breaker.answered(HOSTS[0], 101.0 + 5 * AT_FAULT_FOR)
    assert not breaker.at_fault


def test_after_a_patience_the_gateways_own_answer_outweighs_unexplained_errors() -> None:
    breaker = failing(HealthSignal.UNEXPLAINED, HOSTS[:1])
    breaker.open(LATER, HealthSignal.UNEXPLAINED)
    assert not breaker.is_worth_asking(LATER + UNEXPLAINED_FOR - 1, HealthSignal.UNEXPLAINED)
    assert breaker.is_worth_asking(LATER + UNEXPLAINED_FOR, HealthSignal.UNEXPLAINED)
    breaker.confirm_healthy(LATER + UNEXPLAINED_FOR)
    assert not breaker.is_open
    assert not breaker.failed(LATER + UNEXPLAINED_FOR + 1, HealthSignal.UNEXPLAINED, HOSTS[0])


def test_a_success_within_the_window_clears_the_gateway() -> None:
    breaker = failing(HealthSignal.UNEXPLAINED, HOSTS)
    breaker.answered("other.example", 0.0)
    assert breaker.diagnose(LATER, 50) is Diagnosis.NOTHING


def test_unexplained_errors_of_five_hosts_open_it_without_asking() -> None:
    assert failing(HealthSignal.UNEXPLAINED, HOSTS).diagnose(LATER, 50) is Diagnosis.OPEN


def test_unexplained_errors_of_one_host_open_it_only_where_fewer_than_five_are_in_play() -> None:
    assert failing(HealthSignal.UNEXPLAINED, HOSTS[:1]).diagnose(LATER, 4) is Diagnosis.OPEN
    assert failing(HealthSignal.UNEXPLAINED, HOSTS[:1]).diagnose(LATER, 5) is Diagnosis.NOTHING


def test_old_failures_say_nothing_about_now() -> None:
    breaker = failing(HealthSignal.UNEXPLAINED, HOSTS)
    assert breaker.diagnose(100.0 + EVIDENCE_LIFE, 1) is Diagnosis.NOTHING
    assert not breaker.failing


def test_a_gateway_that_answered_for_itself_is_trusted_for_a_while() -> None:
    breaker = failing(HealthSignal.BROKEN, HOSTS)
    breaker.confirm_healthy(LATER)
    assert not breaker.failed(LATER + 1, HealthSignal.BROKEN, "a")
    assert not breaker.failed(LATER + 1, HealthSignal.UNCONNECTED, "a")
    assert breaker.failed(LATER + 1, HealthSignal.UNEXPLAINED, "a")
    assert breaker.failed(LATER + CONFIRMED_FOR, HealthSignal.BROKEN, "a")


def test_being_trusted_does_not_make_up_for_no_connection() -> None:
    breaker = Breaker()
    breaker.confirm_healthy(100.0)
    assert breaker.failed(101.0, HealthSignal.UNREACHABLE, "a")
    assert breaker.is_open


def test_the_first_sign_of_life_closes_it() -> None:
    breaker = failing(HealthSignal.UNREACHABLE, HOSTS)
    breaker.answered("other.example", 0.0)
    assert not breaker.is_open
    assert breaker.diagnose(LATER, 1) is Diagnosis.NOTHING


def test_probes_come_further_and_further_apart_up_to_the_longest() -> None:
    breaker, now, waits = failing(HealthSignal.UNREACHABLE, HOSTS[:1]), 100.0, []
    for _ in range(8):
        waits.append(breaker.probe_at("caller") - now)
        now = breaker.probe_at("caller")
        breaker.probe(now, "caller", "host")
    assert waits == [1, 2, 4, 8, 16, LONGEST_INTERVAL, LONGEST_INTERVAL, LONGEST_INTERVAL]


def test_an_hour_of_probes_is_less_than_150() -> None:
    breaker, probes = failing(HealthSignal.UNREACHABLE, HOSTS[:1]), 0
    while (now := breaker.next_probe_at) < 100.0 + 3600:
        breaker.probe(now, "caller", "host")
        probes += 1
    assert probes == 123


def test_an_opening_begins_with_the_shortest_interval_again() -> None:
    breaker = failing(HealthSignal.UNREACHABLE, HOSTS[:1])
    breaker.probe(101.0, "caller", "host")
    breaker.answered("other.example", 0.0)
    breaker.failed(200.0, HealthSignal.UNREACHABLE, "host")
    assert breaker.next_probe_at == 201.0


def test_a_caller_that_was_not_probed_with_does_not_wait_for_the_failures_of_another() -> None:
    breaker = failing(HealthSignal.BROKEN, HOSTS)
    breaker.open(LATER, HealthSignal.BROKEN)
    breaker.probe(LATER + 1, "one", "host")
    breaker.probe(LATER + 3, "one", "host")
    assert breaker.probe_at("one") == LATER + 7
    assert breaker.probe_at("other") == LATER + 4


def test_without_a_connection_it_makes_no_difference_whose_task_is_tried() -> None:
    breaker = failing(HealthSignal.UNREACHABLE, HOSTS[:1])
    breaker.probe(101.0, "one", "host")
    assert breaker.probe_at("other") == breaker.probe_at("one") == 103.0


def test_what_is_remembered_is_bounded() -> None:
    breaker = failing(HealthSignal.BROKEN, [str(number) for number in range(2 * MOST_REMEMBERED)])
    assert len(breaker.failing) == MOST_REMEMBERED
    breaker.open(LATER, HealthSignal.BROKEN)
    for number in range(2 * MOST_REMEMBERED):
        breaker.probe(LATER, f"caller {number}", f"host {number}")
    assert len(breaker.probed) <= MOST_REMEMBERED + 1
