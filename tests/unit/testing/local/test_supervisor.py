"""Programs that are kept running: started again when they end, stopped in order, and known by id."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from conveyor.testing.local.supervisor import Program, StartFailed, Supervisor

FOREVER = "import signal; signal.pause()"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def program(name: str, code: str, **more: object) -> Program:
    return Program(name=name, command=[sys.executable, "-c", code], **more)  # type: ignore[arg-type]


async def test_a_program_that_is_killed_is_started_again_under_a_new_id(tmp_path: Path) -> None:
    async with Supervisor(tmp_path).running(program("one", FOREVER)):
        first = pid_of(tmp_path, "one")
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while pid_of(tmp_path, "one") == first:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
        second = pid_of(tmp_path, "one")
        assert is_running(second)
    assert not is_running(second)
    assert not (tmp_path / "one.pid").exists()


async def test_the_next_program_starts_when_the_one_before_answers(tmp_path: Path) -> None:
    asked = []

    async def answers() -> bool:
        asked.append(pid_of(tmp_path, "one"))
        return len(asked) == 3

    async with Supervisor(tmp_path).running(program("one", FOREVER, answers=answers)):
        assert len(asked) == 3


async def test_a_program_that_ends_before_it_answers_is_told_with_its_output(
    tmp_path: Path,
) -> None:
    async def never() -> bool:
        return False

    broken = program("one", "import sys; sys.exit('no such table')", answers=never)
    with pytest.raises(StartFailed, match=r"(?s)one could not be started:.*no such table"):
        async with Supervisor(tmp_path).running(broken):
            pass
    assert not (tmp_path / "one.pid").exists()


async def test_a_program_that_runs_once_must_succeed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    await supervisor.once(program("migrate", "print('done')"))
    assert (tmp_path / "migrate.log").read_text() == "done\n"
    with pytest.raises(StartFailed, match=r"(?s)migrate could not be started"):
        await supervisor.once(program("migrate", "raise SystemExit(2)"))


async def test_a_program_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.testing.local.supervisor.STOPS_WITHIN", 0.1)

    async def up() -> bool:
        return "up" in (tmp_path / "deaf.log").read_text()

    async with Supervisor(tmp_path).running(program("deaf", DEAF, answers=up)):
        found = pid_of(tmp_path, "deaf")
    assert not is_running(found)


def pid_of(folder: Path, name: str) -> int:
    return int((folder / f"{name}.pid").read_text())


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
