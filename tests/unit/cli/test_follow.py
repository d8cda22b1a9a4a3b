"""Following keeps to the run it began with, and says so when that run is gone."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import typer

from conveyor.cli import follow, jobs, output, reruns, submit
from conveyor.cli.hints import explained
from conveyor.client import NotFoundError, Run, Stats
from tests.harness.scripted_server import Answer, Answers, served

JOB, RUN = "/v1/jobs/j", "/v1/jobs/j/runs/r"
# A command leaves its connection to the end of the process, which is not that of a test.
CLOSE = {"Connection": "close"}
NO_JOB: Answer = (404, CLOSE, b'{"code": "not_found", "detail": "No such job"}')
GONE: Answer = (404, CLOSE, b'{"code": "not_found", "detail": "No such run"}')


@pytest.fixture
def answers() -> type[Answers]:
    class Fresh(Answers):
        table: ClassVar[dict[str, Answer | list[Answer]]] = {}
        seen: ClassVar[list[str]] = []
        hang_up = False

    return Fresh


@pytest.fixture
def url(answers: type[Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(follow, "POLL", 0.001)
    answers.table[f"{RUN}/events"] = GONE  # a service without events
    with served(answers) as url:
        yield url


def test_a_job_without_a_run_is_told_and_not_waited_for(
    answers: type[Answers], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.table[JOB] = _job(None)
    jobs.status("j", url=url)
    assert "run_status\tno run\n" in capsys.readouterr().out
    assert _code(lambda: jobs.status("j", follow=True, url=url)) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert "job j has no run" in told.err


@pytest.mark.parametrize("command", ["submit", "rerun", "status"])
def test_a_run_that_is_deleted_is_not_taken_for_another(
    answers: type[Answers], url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    command: str,
) -> None:  # fmt: skip
    answers.table[JOB] = [_job("r", "running"), _job("other", "completed")]
    if command != "status":
        answers.table[JOB] = _job("other", "completed")
    answers.table[RUN] = [_run("r", "running"), GONE]
    assert _code(lambda: _followed(command, answers, url, tmp_path)) == 3
    told = capsys.readouterr()
    assert "run r was deleted" in told.err
    assert "conveyor runs j" in told.err
    assert "completed" not in told.out


@pytest.mark.parametrize("command", ["submit", "rerun", "status"])
def test_a_rerun_meanwhile_does_not_change_what_is_followed(
    answers: type[Answers], url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    command: str,
) -> None:  # fmt: skip
    for as_json in (False, True):
        answers.table[JOB] = [_job("r", "running"), _job("other", "completed")]
        if command != "status":
            answers.table[JOB] = _job("other", "completed")
        answers.table[RUN] = [_run("r", "running"), _run("r", "stopped")]
        assert _code(partial(_followed, command, answers, url, tmp_path, as_json=as_json)) == 3
        told = capsys.readouterr().out
        assert "other" not in told
        if as_json:
            assert json.loads(told.splitlines()[-1])["run_id"] == "r"
        else:
            assert "run\tr\nrun_status\tstopped\n" in told


def test_the_end_is_told_by_the_job_while_the_run_is_its_latest(
    answers: type[Answers], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.table[JOB] = [_job("r", "running"), _job("r", "completed")]
    answers.table[RUN] = [_run("r", "running"), _run("r", "completed")]
    jobs.status("j", follow=True, url=url)
    told = capsys.readouterr().out
    assert told.startswith("job\tj\njob_status\tclosed\nrun\tr\nrun_status\tcompleted\n")


def test_a_job_that_is_deleted_at_the_end_is_told_by_its_run(
    answers: type[Answers], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.table[JOB] = [_job("r", "running"), GONE]
    answers.table[RUN] = _run("r", "completed")
    jobs.status("j", follow=True, url=url)
    assert capsys.readouterr().out.startswith("job\tj\nrun\tr\nrun_status\tcompleted\n")


def test_a_run_that_is_not_there_says_how_to_find_one(answers: type[Answers], url: str) -> None:
    answers.table |= {JOB: NO_JOB, RUN: GONE}
    for run, command in (("r", "conveyor runs JOB"), (None, "conveyor jobs")):
        with pytest.raises(NotFoundError) as error:
            jobs.delete("j", run=run, yes=True, url=url)
        assert f"`{command}` lists" in explained(error.value)


def _followed(
    command: str, answers: type[Answers], url: str, folder: Path, *, as_json: bool = False
) -> None:
    made = {"job_id": "j", "latest_run": {"run_id": "r", "status": "running"}}
    if command == "submit":
        (folder / "urls").write_text("https://a.example\n")
        answers.table["/v1/jobs"] = _answer({**made, "accepted_tasks": 1})
        submit.submit(str(folder / "urls"), follow=True, url=url, as_json=as_json)
    elif command == "rerun":
        answer = _answer({**made, "retried_tasks": 1, "inherited_tasks": 0})
        answers.table[f"{JOB}/rerun"] = answer
        reruns.rerun("j", follow=True, url=url, as_json=as_json)
    else:
        jobs.status("j", follow=True, url=url, as_json=as_json)


def _code(command: Callable[[], None]) -> int:
    with pytest.raises(typer.Exit) as end:
        command()
    return end.value.exit_code


def _job(run_id: str | None, status: str = "") -> Answer:
    job: dict[str, object] = {"job_id": "j", "status": "closed"}
    if run_id:
        job["latest_run"] = {"run_id": run_id, "status": status}
    return _answer(job)


def _run(run_id: str, status: str) -> Answer:
    return _answer({"run_id": run_id, "status": status})


def _answer(body: object) -> Answer:
    return 200, CLOSE, json.dumps(body).encode()


def test_the_mean_rate_of_a_rerun_leaves_out_what_it_inherited() -> None:
    run = Run(
        run_id="r",
        status="completed",
        created_at=datetime(2026, 3, 2, 12, tzinfo=UTC),
        updated_at=datetime(2026, 3, 2, 12, 0, 10, tzinfo=UTC),
        stats=Stats(total=3_002, completed=3_002),
        inherited_tasks=3_000,
    )
    assert (output.done_here(run), output.mean_rate(run, timedelta(seconds=10))) == (2, 0.2)
    assert output.elapsed(run) == timedelta(seconds=10)
