"""The report of bad lines on a terminal: what is said beside it."""

import sys

import pytest

from conveyor.cli.jobs import note_rest
from conveyor.client import Run


@pytest.mark.parametrize(
    ("run", "told", "words"),
    [
        (Run(run_id="r", status="completed"), 0, "No line of its list is reported.\n"),
        (Run(run_id="r", status="completed", ingest_errors=2), 2, ""),
        (
            Run(run_id="r", status="completed", ingest_errors=200_000),
            100_000,
            "These are the first of 200,000: the rest is only counted.\n",
        ),
        (
            Run(run_id="r", status="running", ingest_status="pending", ingest_errors=9),
            7,
            "7 so far: the service is still reading the list.\n",
        ),
        (
            Run(run_id="r", status="stopped", ingest_error="It is cut\x1b short"),
            0,
            "No line of its list is reported.\nOf the list as a whole: It is cut  short\n",
        ),
    ],
)
def test_a_note_says_what_the_report_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Run,
    told: int,
    words: str,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    note_rest(run, told)
    assert capsys.readouterr().err == words
