"""What a refusal tells on the command line: what happened, and what to do."""

import socket
from collections.abc import Iterator

import pytest

from conveyor.cli.connect import Endpoint
from conveyor.cli.hints import explained
from conveyor.client import UnreachableError
from conveyor.client.errors import ApiError, Problem, refusal
from conveyor.errors import CallerFault, ConveyorError, Unavailable


def _below(root: type[ConveyorError]) -> Iterator[type[ConveyorError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _below(kind)


def _refused(status: int, code: str, detail: str = "So") -> str:
    return explained(ApiError(Problem(status=status, code=code, detail=detail)))


@pytest.mark.parametrize("kind", list(_below(CallerFault)) + list(_below(Unavailable)))
def test_every_refusal_says_what_to_do(kind: type[CallerFault | Unavailable]) -> None:
    status = getattr(kind, "status", 503)
    said, *advice = _refused(status, kind.code).splitlines()
    assert said == f"So ({status} {kind.code})"
    assert len(advice) == 1
    assert len(advice[0].strip()) > 10


def test_a_refusal_cannot_steer_the_terminal() -> None:
    told = _refused(404, "not_found", "No\x1b[31m such job")
    assert "such job (404 not_found)" in told
    assert "conveyor jobs" in told
    assert "\x1b" not in told


def test_a_refusal_without_words_of_the_commands_has_those_of_the_error() -> None:
    assert (
        "run the job again. To keep results longer, submit with a larger `result_ttl_days`"
        in _refused(410, "result_expired")
    )
    assert _refused(418, "teapot") == "So (418 teapot)"


@pytest.mark.parametrize(
    ("detail", "command"),
    [
        ("No such job", "jobs"),
        ("No such run", "runs JOB"),
        ("No such task", "results JOB"),
        ("No such event", "webhook deliveries JOB"),
    ],
)
def test_what_is_not_there_says_which_command_lists_it(detail: str, command: str) -> None:
    assert f"`conveyor {command}`" in _refused(404, "not_found", detail)


def test_a_path_that_is_not_there_means_another_base_url() -> None:
    assert _refused(404, "not_found", "No such path").endswith("the base URL must end in /v1")


def test_advice_is_about_commands_not_about_calls() -> None:
    assert "`conveyor webhook set" in _refused(404, "not_found", "The job has no webhook")
    assert "`conveyor webhook deliv" in _refused(404, "not_found", "No such event")
    unset = "The job has no webhook in use: set one first"
    assert "`conveyor webhook set" in _refused(409, "conflict", unset)
    unscheduled = "This job has no schedule: submit one with `type: scheduled`"
    assert "--cron" in _refused(409, "conflict", unscheduled)
    assert "`conveyor signing-keys finish`" in _refused(409, "candidate_pending")
    assert "`conveyor signing-keys rotate`" in _refused(409, "no_candidate")


def test_a_fault_of_the_service_is_told_with_its_request_id() -> None:
    problem = b'{"code": "internal", "detail": "It broke"}'
    told = explained(refusal(500, problem, {"X-Request-ID": "abc"}))
    assert told.startswith("It broke (500 internal, request id abc)\n  repeat")


def test_a_service_that_is_not_there_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with (
        Endpoint(f"http://127.0.0.1:{port}/v1", None).client() as client,
        pytest.raises(UnreachableError) as error,
    ):
        client.job("j")
    assert "is it running" in explained(error.value)
    assert "`conveyor dev --mock-gateway`" in explained(error.value)
