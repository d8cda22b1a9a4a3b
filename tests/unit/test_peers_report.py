"""The peers' benchmark counts what came out, and tells it as it was."""

import pytest
from benchmarks.peers.environments import reason
from benchmarks.peers.report import Account, Row, Trial, account, markdown, printed
from benchmarks.peers.rounds import WORKERS
from benchmarks.peers.table import BROKERS, ENGINES, PEERS, Peer

WHOLE = Account(done=100, missing=0, doubled=0, torn=0)


def test_whole_pages_count_once_and_the_rest_is_told_apart() -> None:
    files = [("0", 20), ("1", 20), ("1.again-ab", 20), ("1.again-cd", 20), ("2", 7)]
    assert account(files, asked=4, size=20) == Account(done=2, missing=2, doubled=2, torn=1)


def test_a_folder_with_every_page_misses_nothing() -> None:
    files = [(str(number), 20) for number in range(5)]
    assert account(files, asked=5, size=20) == Account(done=5, missing=0, doubled=0, torn=0)


def test_the_ratio_is_the_median_of_paired_rounds() -> None:
    row = _row(_trial(seconds=1.0), _trial(seconds=0.5), _trial(seconds=0.25, script=1_000.0))
    assert "| 0.40 (0.20 to 0.40) |" in markdown([row])


def test_cpu_is_told_for_a_task_that_was_done() -> None:
    half = Account(done=50, missing=50, doubled=0, torn=0)
    assert "| 4.00 ms |" in markdown([_row(_trial(counted=half))])


def test_what_is_missing_or_doubled_is_in_the_row() -> None:
    poor = Account(done=1_000, missing=1_500, doubled=2, torn=0)
    row = _row(_trial(counted=poor, in_time=False))
    [line] = [line for line in markdown([row]).splitlines() if "SAQ" in line]
    assert line.endswith("| quick; 1,500 missing, 2 doubled, stopped before all were done |")


def test_a_round_as_it_should_be_gets_no_remark() -> None:
    assert markdown([_row(_trial())]).endswith("| quick |")


def test_a_peer_that_did_nothing_has_a_rate_of_nothing() -> None:
    none = Account(done=0, missing=100, doubled=0, torn=0)
    row = _row(_trial(counted=none, seconds=-1.0))
    assert "| 0.00 | — |" in markdown([row])


def test_a_peer_that_could_not_run_has_a_row_that_says_why() -> None:
    row = Row("SAQ", "1", "Redis", "yes", "quick", failure="not installed: no | network")
    assert "| — | — | yes | not installed: no / network; quick |" in markdown([row])


def test_the_printed_table_lines_up_the_figures() -> None:
    rows = [_row(_trial()), Row("Procrastinate", "3.10.0", "PostgreSQL", "no", "", failure="why")]
    columns = {line.index(word) for line, word in zip(printed(rows).splitlines(), ("broker", "Redis", "PostgreSQL"), strict=True)}  # fmt: skip
    assert len(columns) == 1


def test_what_pip_gives_as_its_last_error_is_the_reason() -> None:
    told = (
        "WARNING: slow\nERROR: from versions: none\nERROR: No matching distribution\nnotice: old\n"
    )
    assert reason(told) == "No matching distribution"


def test_without_an_error_the_last_line_is_the_reason_and_there_is_always_one() -> None:
    assert (reason("one\ntwo\n\n"), reason("")) == ("two", "no reason given")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_pinned_and_has_its_program(peer: Peer) -> None:
    assert all("==" in pin for pin in peer.pins)
    assert (WORKERS / f"{peer.module}.py").exists()
    assert peer.engine in BROKERS
    assert bool(peer.worker) == (peer.engine in ENGINES)  # a crawler has neither


def _row(*trials: Trial) -> Row:
    return Row("SAQ", "0.26", "Redis", "yes", "quick", trials=trials)


def _trial(
    *,
    counted: Account = WHOLE,
    seconds: float = 0.5,
    script: float = 500.0,
    in_time: bool = True,
) -> Trial:
    return Trial(account=counted, seconds=seconds, cpu=0.2, script_rate=script, in_time=in_time)
