"""Log lines: one event each, in either form, and nothing in them that looks like a secret."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from conveyor.telemetry.logs import set_up_logs, without_secrets

LEAKS = (
    "GET http://gateway/v1/?apikey=S3CRET&url=https://a.example/?token=S3CRET",
    "apikey=S3CRET",
    "x-api-key=S3CRET; more",
    "refused cvk_01M7GNPVD0697FEM6F7VYWRK5F_S3CRET of a caller",
    'cannot put "https://a.example/p/?token=S3CRET" on the wire',
    "https://a.example/p#S3CRET",
    "HTTPS://A.EXAMPLE?S3CRET",
    "/_local/results/j/r/t?expires=1&signature=S3CRET",
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize("text", LEAKS)
def test_what_looks_like_a_secret_or_a_query_is_blotted_out(text: str) -> None:
    event = {"event": text, "about": {"deep": [text, (text,)]}, "number": 7}
    told = without_secrets(None, "", event)
    assert "S3CRET" not in str(told)
    assert told["number"] == 7


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8080/v1", "why? because", "files: No space left", "a=1&b=2"]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert without_secrets(None, "", {"event": text}) == {"event": text}


def test_a_line_is_json_with_its_fields_and_those_of_the_request(
    capfd: pytest.CaptureFixture[str],
) -> None:
    set_up_logs("info", json=True)
    log = structlog.get_logger()
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        log.info("job.accepted", job_id="j1", tasks=3)
    log.debug("http.request")
    [line] = capfd.readouterr().err.splitlines()
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "job.accepted",
        "level": "info",
        "job_id": "j1",
        "tasks": 3,
        "request_id": "r1",
    }


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_is_one_events_and_holds_no_secret(
    capfd: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    set_up_logs("info", json=as_json)
    try:
        _fail(LEAKS[0])
    except ValueError:
        structlog.get_logger().exception("attempt.bug", task_id="t1")
    told = capfd.readouterr().err
    assert "ValueError" in told
    assert "t1" in told
    assert "S3CRET" not in told
    assert not as_json or json.loads(told)["task_id"] == "t1"


@pytest.mark.parametrize("as_json", [True, False])
def test_what_libraries_log_takes_the_same_form(
    capfd: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    set_up_logs("debug", json=as_json)
    library = logging.getLogger("some.library")
    library.info("chatter")
    try:
        _fail(LEAKS[3])
    except ValueError:
        library.exception("went wrong at %s", LEAKS[0])
    told = capfd.readouterr().err
    assert "chatter" not in told
    assert "S3CRET" not in told
    assert "went wrong" in told
    if as_json:
        line = json.loads(told)
        assert (line["level"], line["logger"]) == ("error", "some.library")
        assert "ValueError" in line["exception"]


def _fail(text: str) -> None:
    raise ValueError(text)
