"""The way to Step Functions when all is not well: an endpoint that does its worst."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from conveyor.adapters.aws.step_functions import AwsStepFunctions
from conveyor.app.engines import open_step_functions
from conveyor.errors import RefusedToStart
from conveyor.ports.step_functions import (
    CallbackResult,
    RetryLater,
    Sent,
    StepFunctions,
    TaskClosed,
)
from conveyor.settings import Settings
from tests.aws.endpoint import (
    AWAY,
    BROKEN,
    CUT,
    DENIED,
    EXPIRED,
    LOST_ANSWER,
    NONSENSE,
    STRANGE,
    THROTTLED,
    Endpoint,
    Fault,
    an_endpoint,
    refusal,
)
from tests.harness.memory_service import until

TOKEN = "AQCEAAAAKgAAAAMAAAAA-a-token-of-mine"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with an_endpoint() as one:
        for name, value in one.environ.items():
            monkeypatch.setenv(name, value)
        yield one


@pytest.fixture
async def tokens(endpoint: Endpoint) -> AsyncIterator[StepFunctions]:
    async with open_step_functions(Settings(step_functions="aws:")) as opened:
        yield opened


async def _ways(tokens: StepFunctions) -> list[CallbackResult]:
    return [
        await tokens.succeed(TOKEN, "{}"),
        await tokens.fail(TOKEN, error="RunStopped", cause="{}"),
        await tokens.heartbeat(TOKEN),
    ]


TROUBLES = [
    (THROTTLED, RetryLater("ThrottlingException", 400)),
    (DENIED, RetryLater("AccessDeniedException", 400)),
    (EXPIRED, RetryLater("ExpiredTokenException", 400)),
    (refusal("KmsThrottlingException"), RetryLater("KmsThrottlingException", 400)),
    (refusal("InvalidOutput"), RetryLater("InvalidOutput", 400)),
    (BROKEN, RetryLater("InternalServerError", 500)),
    (STRANGE, RetryLater("HTTP 418", 418)),
    (CUT, RetryLater("ConnectionClosedError")),
    (LOST_ANSWER, RetryLater("ConnectionClosedError")),
]


@pytest.mark.parametrize(("fault", "answer"), TROUBLES)
async def test_what_goes_wrong_is_told_by_its_name_and_tried_once(
    endpoint: Endpoint, tokens: StepFunctions, fault: Fault, answer: RetryLater
) -> None:
    endpoint.start(TOKEN)
    endpoint.faults.extend([fault] * 3)
    answers = await _ways(tokens)
    assert answers[0] == answer
    assert {type(one) for one in answers} == {RetryLater}
    assert endpoint.calls == ["SendTaskSuccess", "SendTaskFailure", "SendTaskHeartbeat"]
    assert all(endpoint.signed)


async def test_an_answer_that_is_no_json_is_trouble_or_taken_and_nothing_else(
    endpoint: Endpoint, tokens: StepFunctions
) -> None:
    endpoint.start(TOKEN)
    endpoint.faults.extend([AWAY, NONSENSE])
    away = await tokens.heartbeat(TOKEN)
    assert isinstance(away, RetryLater)
    assert away.status_code == 503
    assert isinstance(await tokens.succeed(TOKEN, "{}"), RetryLater | Sent)


@pytest.mark.parametrize("code", ["TaskTimedOut", "TaskDoesNotExist"])
async def test_a_state_that_does_not_wait_is_closed(
    endpoint: Endpoint, tokens: StepFunctions, code: str
) -> None:
    endpoint.faults.extend([refusal(code, message=f"'{TOKEN}' is over")] * 3)
    assert await _ways(tokens) == [TaskClosed(code)] * 3


async def test_a_token_that_is_called_invalid_is_tried_again(
    endpoint: Endpoint, tokens: StepFunctions
) -> None:
    """So is every token where the region is wrong; it is good again once that is put right."""
    endpoint.faults.extend([refusal("InvalidToken", message=f"'{TOKEN}' is odd")] * 3)
    assert await _ways(tokens) == [RetryLater("InvalidToken", 400)] * 3


async def test_a_lost_answer_is_followed_by_closed(
    endpoint: Endpoint, tokens: StepFunctions
) -> None:
    endpoint.start(TOKEN)
    endpoint.faults.append(LOST_ANSWER)
    assert isinstance(await tokens.succeed(TOKEN, '{"first": 1}'), RetryLater)
    assert await tokens.succeed(TOKEN, '{"first": 1}') == TaskClosed("TaskTimedOut")
    assert endpoint.outcomes[TOKEN] == {"output": {"first": 1}}


async def test_no_answer_quotes_the_token_whatever_the_endpoint_says(
    endpoint: Endpoint, tokens: StepFunctions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    endpoint.faults.extend(refusal(code, message=TOKEN) for code in (TOKEN, "X", TOKEN))
    told = str(await _ways(tokens))
    assert TOKEN not in told
    assert TOKEN not in caplog.text


async def test_an_endpoint_that_is_not_there_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with an_endpoint() as gone:
        environ = gone.environ
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    async with open_step_functions(Settings(step_functions="aws:")) as opened:
        assert await opened.heartbeat(TOKEN) == RetryLater("EndpointConnectionError")


async def test_without_credentials_is_trouble_that_says_so(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    async with open_step_functions(Settings(step_functions="aws:")) as opened:
        assert await opened.heartbeat(TOKEN) == RetryLater("NoCredentialsError")
    assert not endpoint.calls


@asynccontextmanager
async def _hasty(threads: int) -> AsyncIterator[AwsStepFunctions]:
    async with AwsStepFunctions(threads=threads, read=timedelta(milliseconds=300)) as one:
        yield one


async def test_a_slow_answer_ends_in_time_and_holds_nobody_up(endpoint: Endpoint) -> None:
    quick = endpoint.start("quick")
    endpoint.faults.append(Fault(wait=30))
    async with _hasty(threads=2) as tokens, asyncio.TaskGroup() as group:
        slow = group.create_task(tokens.heartbeat(TOKEN))
        await until(lambda: endpoint.calls)
        assert await tokens.succeed(quick, "{}") == Sent()
        assert not slow.done()
    assert slow.result() == RetryLater("ReadTimeoutError")


async def test_leaving_waits_for_no_call(endpoint: Endpoint) -> None:
    endpoint.faults.append(Fault(wait=30))
    began = time.monotonic()
    async with AwsStepFunctions(threads=1) as tokens:
        call = asyncio.ensure_future(tokens.heartbeat(TOKEN))
        await until(lambda: endpoint.calls)
        call.cancel()
    assert time.monotonic() - began < 25  # seconds; the call waits for 30


# The start.


def test_without_a_region_the_program_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(RefusedToStart, match="AWS_REGION"):
        open_step_functions(Settings(step_functions="aws:"))


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_either_variable_names_the_region(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for other in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SFN"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "ap-southeast-2")
    opened = AwsStepFunctions(threads=1)
    assert opened._client.meta.endpoint_url == "https://states.ap-southeast-2.amazonaws.com"


MISSING = """
import sys
sys.modules["botocore"] = None
from conveyor.app.engines import open_step_functions
from conveyor.settings import Settings
from conveyor.errors import RefusedToStart
open_step_functions(Settings())
try:
    open_step_functions(Settings(step_functions="aws:"))
except RefusedToStart as refused:
    print(refused)
"""


def test_without_botocore_only_those_who_want_it_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, check=True
    )
    assert "pip install 'conveyor-batch[aws]'" in done.stdout


def test_botocore_is_loaded_only_when_it_is_wanted() -> None:
    look = "import sys; import conveyor.app.roles; print('botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_a_service_that_is_not_connected_any_more_keeps_what_it_owes() -> None:
    async with open_step_functions(Settings()) as unconnected:
        answers = await _ways(unconnected)
    assert {type(one) for one in answers} == {RetryLater}
    assert "step_functions" in str(answers[0])
