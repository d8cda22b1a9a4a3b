"""The report of bad lines on a terminal: what is said beside it."""

import sys

import pytest

from conveyor.cli.bad_rows import _tell_what_is_not_told
from conveyor.cli.shapes import Run


@pytest.mark.parametrize(
    ("run", "told", "words"),
    [
        (Run(run_id="r", status="completed"), 0, "No line of its list is reported.\n"),
        (Run(run_id="r", status="completed", ingest_errors=2), 2, ""),
        (
            Run(run_id="r", status="completed", ingest_errors=200_000),
            100_000,
            "These are the first of 200,000: no more are told one by one.\n",
        ),
        (
            Run(run_id="r", status="running", ingest_status="pending", ingest_errors=9),
            7,
            "7 so far: the list is still read.\n",
        ),
        (
            Run(run_id="r", status="stopped", ingest_error="It is cut\x1b short"),
            0,
            "No line of its list is reported.\nOf the list as a whole: It is cut  short\n",
        ),
    ],
)
def test_what_the_report_does_not_tell_is_told_beside_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Run,
    told: int,
    words: str,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _tell_what_is_not_told(run, told)
    assert capsys.readouterr().err == words
