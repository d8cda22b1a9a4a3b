"""The emulators themselves: what the other tests here rest upon."""

from pathlib import Path

import msgspec
import pytest

from tests import emulators
from tests.aws.state_machines import a_machine
from tests.emulators import Emulator


def test_a_state_machine_waits_for_its_token_and_goes_on_with_what_it_is_told(
    aws: Emulator,
) -> None:
    machine = a_machine(aws)
    waiting = machine.start()
    assert waiting.is_waiting

    output = msgspec.json.encode({"status": "completed"}).decode()
    machine.states.send_task_success(taskToken=waiting.token, output=output)

    assert waiting.outcome() == {"next_state_saw": {"status": "completed"}}


def test_a_state_machine_catches_a_failure_by_its_name(aws: Emulator) -> None:
    machine = a_machine(aws)
    waiting = machine.start()

    machine.states.send_task_failure(taskToken=waiting.token, error="RunStopped", cause="so")

    assert waiting.outcome()["by_name"] == "RunStopped"


def test_without_them_tests_are_skipped_at_home_and_fail_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(emulators, "PROGRAMS", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception), emulators._running("moto_server", [], 1, {}):
        pass
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception), emulators._running("moto_server", [], 1, {}):
        pass
