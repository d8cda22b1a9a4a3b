"""What every adapter that calls back to Step Functions must do."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from conveyor.ports.step_functions import CallbackResult, Sent, StepFunctions, TaskClosed

ERROR = "RunStopped"
CAUSE = msgspec.json.encode({"message": "so it is: \u00e9 \u2603 \"'"}).decode()
OUTPUT: dict[str, Any] = {"status": "completed", "stats": {"total": 3}, "text": "\u00e9 \u2603 \"'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBench:
    """An adapter, states that wait, and what the emulator of them cannot do."""

    tokens: StepFunctions
    start: Callable[[], str]  # starts a state that waits, and returns its token
    outcome: Callable[
        [str], dict[str, Any]
    ]  # what the state received: `output`, or `error` and `cause`
    keeps_causes: bool = True
    calls_the_ended_invalid: bool = False  # AWS gives that answer for a wrong region
    knows_late_failures: bool = True  # a failure after the first callback is answered `TaskClosed`


class StepFunctionsContract:
    async def test_a_state_goes_on_with_the_output(self, bench: TokenBench) -> None:
        token = bench.start()
        assert await bench.tokens.succeed(token, _json(OUTPUT)) == Sent()
        assert bench.outcome(token) == {"output": OUTPUT}

    async def test_an_output_can_be_far_longer_than_ours_ever_are(self, bench: TokenBench) -> None:
        token = bench.start()
        output = {"text": "x" * 200_000}
        assert await bench.tokens.succeed(token, _json(output)) == Sent()
        assert bench.outcome(token) == {"output": output}

    async def test_a_state_fails_by_name(self, bench: TokenBench) -> None:
        token = bench.start()
        assert await bench.tokens.fail(token, error=ERROR, cause=CAUSE) == Sent()
        outcome = bench.outcome(token)
        assert outcome["error"] == ERROR
        assert not bench.keeps_causes or outcome["cause"] == CAUSE

    async def test_the_first_word_counts_and_the_second_finds_it_closed(
        self, bench: TokenBench
    ) -> None:
        token = bench.start()
        await bench.tokens.succeed(token, _json(OUTPUT))
        assert bench.outcome(token) == {"output": OUTPUT}

        _closed(bench, await bench.tokens.succeed(token, "{}"), token)
        _closed(bench, await bench.tokens.heartbeat(token), token)
        late = await bench.tokens.fail(token, error=ERROR, cause=CAUSE)
        if bench.knows_late_failures:
            _closed(bench, late, token)
        assert bench.outcome(token) == {"output": OUTPUT}

    async def test_a_token_that_never_was_is_told_nothing(self, bench: TokenBench) -> None:
        token = "a-token-of-nobody"  # noqa: S105 - that is what it is
        for answer in (
            await bench.tokens.succeed(token, "{}"),
            await bench.tokens.fail(token, error=ERROR, cause=CAUSE),
            await bench.tokens.heartbeat(token),
        ):
            assert not isinstance(answer, Sent)
            assert token not in answer.why

    async def test_a_heartbeat_leaves_the_state_waiting(self, bench: TokenBench) -> None:
        token = bench.start()
        for _ in range(3):
            assert await bench.tokens.heartbeat(token) == Sent()
        assert await bench.tokens.succeed(token, _json(OUTPUT)) == Sent()
        assert bench.outcome(token) == {"output": OUTPUT}

    async def test_of_many_at_a_time_each_hears_its_own(self, bench: TokenBench) -> None:
        tokens = [bench.start() for _ in range(5)]
        async with asyncio.TaskGroup() as group:
            told = [
                group.create_task(bench.tokens.succeed(token, _json({"number": number})))
                for number, token in enumerate(tokens)
            ]
        assert [one.result() for one in told] == [Sent()] * 5
        for number, token in enumerate(tokens):
            assert bench.outcome(token) == {"output": {"number": number}}


def _closed(bench: TokenBench, answer: CallbackResult, token: str) -> None:
    assert not isinstance(answer, Sent)
    assert isinstance(answer, TaskClosed) or bench.calls_the_ended_invalid
    assert answer.why
    assert token not in answer.why


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
