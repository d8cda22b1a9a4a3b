"""An endpoint of Step Functions that does its worst: real HTTP, with faults on order.

What the emulators never do: throttle, refuse, answer late, answer nonsense, do as they are told
and cut the line before they say so. Its messages quote the token, as nothing promises they do not.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import msgspec

from tests.emulators import REGION

TARGET = "AWSStepFunctions."


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one call."""

    applied: bool = False  # the state hears of it all the same
    cut: bool = False  # the line goes dead in place of an answer
    wait: float = 0.0  # seconds before the answer
    status: int = 200
    body: bytes = b"{}"


def refusal(code: str, status: int = 400, message: str = "") -> Fault:
    body = msgspec.json.encode({"__type": code, "message": message})
    return Fault(status=status, body=body)


THROTTLED = refusal("ThrottlingException", message="Rate exceeded")
DENIED = refusal("AccessDeniedException", message="You are not authorized to SendTaskSuccess")
EXPIRED = refusal("ExpiredTokenException", message="The security token included is expired")
BROKEN = refusal("InternalServerError", 500)
AWAY = Fault(status=503, body=b"<html>Service Unavailable</html>")
NONSENSE = Fault(status=200, body=b"\x00 this is no JSON", applied=True)
STRANGE = refusal("a code no one knows: <b>", 418)
CUT = Fault(cut=True)
LOST_ANSWER = Fault(applied=True, cut=True)


@dataclass(slots=True)
class Endpoint:
    """States that wait, and the faults that befall the calls to come, one a call."""

    url: str = ""
    waiting: set[str] = field(default_factory=set)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    beats: Counter[str] = field(default_factory=Counter)
    faults: deque[Fault] = field(default_factory=deque)
    weather: Callable[[], Fault | None] = field(default=lambda: None)
    calls: list[str] = field(default_factory=list)
    signed: list[bool] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_SFN": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self, token: str | None = None) -> str:
        token = token or f"token-{len(self.waiting) + len(self.outcomes)}"
        self.waiting.add(token)
        return token

    def serve(self, action: str, given: dict[str, str]) -> Fault:
        """What is to be answered, with its effect."""
        with self.lock:
            self.calls.append(action)
            fault = self.faults.popleft() if self.faults else self.weather()
            if fault is None or fault.applied:
                answer = self._apply(action, given)
                return fault or answer
            return fault

    def _apply(self, action: str, given: dict[str, str]) -> Fault:
        token = given["taskToken"]
        if token not in self.waiting:
            code = "TaskTimedOut" if token in self.outcomes else "TaskDoesNotExist"
            return refusal(code, message=f"Task Timed Out: '{token}'")
        if action == "SendTaskHeartbeat":
            self.beats[token] += 1
            return Fault()
        self.waiting.discard(token)
        success = action == "SendTaskSuccess"
        self.outcomes[token] = (
            {"output": msgspec.json.decode(given["output"])}
            if success
            else {"error": given["error"], "cause": given["cause"]}
        )
        return Fault()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, endpoint: Endpoint, *given: Any) -> None:
        self._endpoint = endpoint
        super().__init__(*given)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        self._endpoint.signed.append("AWS4-HMAC-SHA256" in self.headers.get("authorization", ""))
        action = self.headers["x-amz-target"].removeprefix(TARGET)
        answer = self._endpoint.serve(action, msgspec.json.decode(raw))
        if answer.wait:
            self._endpoint.released.wait(answer.wait)
        if answer.cut:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is no news."""


@contextmanager
def an_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    server = _Server(("127.0.0.1", 0), partial(_Handler, endpoint))
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def bad_weather(seed: int, share: float = 0.5) -> Callable[[], Fault | None]:
    """So large a share of calls goes wrong, in any of the ways there are."""
    dice = Random(seed)
    kinds = (THROTTLED, DENIED, BROKEN, AWAY, STRANGE, CUT, LOST_ANSWER)

    def weather() -> Fault | None:
        return dice.choice(kinds) if dice.random() < share else None

    return weather
