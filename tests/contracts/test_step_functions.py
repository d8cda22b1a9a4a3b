"""What tells states, over a model, an endpoint of our own, and every emulator there is."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from conveyor.adapters.aws.step_functions import AwsStepFunctions
from conveyor.testing.contracts.step_functions import StepFunctionsContract, TokenBench
from conveyor.testing.memory.step_functions import MemoryStepFunctions
from tests.aws.endpoint import an_endpoint
from tests.aws.state_machines import Waiting, a_machine
from tests.emulators import Emulator

THREADS = 8


def _in_memory() -> TokenBench:
    states = MemoryStepFunctions()

    def start() -> str:
        token = f"token-{len(states.waiting) + len(states.outcomes)}"
        states.waiting.add(token)
        return token

    def outcome(token: str) -> dict[str, Any]:
        told: dict[str, Any] = dict(states.outcomes[token])
        if "output" in told:
            told["output"] = msgspec.json.decode(told["output"])
        return told

    return TokenBench(tokens=states, start=start, outcome=outcome)


def _on(emulator: Emulator, tokens: AwsStepFunctions) -> TokenBench:
    machine = a_machine(emulator, HeartbeatSeconds=60)
    waiting: dict[str, Waiting] = {}

    def start() -> str:
        one = machine.start()
        waiting[one.token] = one
        return one.token

    def outcome(token: str) -> dict[str, Any]:
        told = waiting[token].outcome()
        if "next_state_saw" in told:
            return {"output": told["next_state_saw"]}
        return {"error": told["it"]["Error"], "cause": told["it"].get("Cause")}

    is_moto = emulator.name == "moto_server"
    return TokenBench(
        tokens=tokens,
        start=start,
        outcome=outcome,
        keeps_causes=not is_moto,
        calls_the_ended_invalid=is_moto,
        knows_late_failures=not is_moto,
    )


@pytest.fixture(params=["memory", "endpoint", "ministack", "moto"])
async def bench(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TokenBench]:
    if request.param == "memory":
        yield _in_memory()
    elif request.param == "endpoint":
        with an_endpoint() as endpoint:
            async with _connected(monkeypatch, endpoint.environ) as tokens:
                yield TokenBench(
                    tokens=tokens, start=endpoint.start, outcome=endpoint.outcomes.__getitem__
                )
    else:
        emulator: Emulator = request.getfixturevalue(request.param)
        async with _connected(monkeypatch, emulator.environ) as tokens:
            yield _on(emulator, tokens)


def _connected(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> AwsStepFunctions:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return AwsStepFunctions(threads=THREADS)


class TestTaskTokens(StepFunctionsContract):
    pass
