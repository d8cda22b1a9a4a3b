"""A server of S3 that does its worst: real HTTP, with faults on order and nothing behind it."""

import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.s3_server import S3Server

ERROR = "<Error><Code>{code}</Code><Message>Told to.</Message><RequestId>REQ-7</RequestId></Error>"
LISTING = b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"
STARTED = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
DONE = b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"


@dataclass(frozen=True, slots=True)
class S3Fault:
    status: int = 200
    code: str = ""
    cut: bool = False  # the line goes dead in place of an answer
    hang: bool = False  # no answer until the test is over
    held: bool = False  # an answer only when the test releases it


SLOW_DOWN = S3Fault(503, "SlowDown")
DENIED = S3Fault(403, "AccessDenied")
NO_BUCKET = S3Fault(404, "NoSuchBucket")
CUT = S3Fault(cut=True)
HANG = S3Fault(hang=True)
HELD = S3Fault(held=True)
FINE = S3Fault()


@dataclass(slots=True)
class S3Endpoint:
    """The calls it was made, and the faults that befall the next ones, one a call."""

    server: S3Server
    faults: deque[S3Fault] = field(default_factory=deque)
    calls: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    deleted: list[str] = field(default_factory=list)  # keys
    marks: dict[str, str] = field(default_factory=dict)  # of multipart uploads, by path

    def answer(self, method: str, path: str) -> tuple[int, bytes] | None:
        self.calls.append(f"{method} {path}")
        fault = self.faults.popleft() if self.faults else S3Fault()
        if fault.hang or fault.held:
            self.released.wait(60)
        if fault.cut or fault.hang:
            return None
        if fault.code:
            return fault.status, ERROR.format(code=fault.code).encode()
        if "uploads" in path:
            return 200, STARTED
        if "uploadId" in path and method == "POST":
            return 200, DONE
        return (204 if method == "DELETE" else 200), LISTING if "list-type" in path else b""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, endpoint: S3Endpoint, *given: Any) -> None:
        self._endpoint = endpoint
        super().__init__(*given)

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        path, _, query = self.path.partition("?")
        if mark := self.headers.get("x-amz-meta-upload"):
            self._endpoint.marks[path] = mark
        if query == "delete":
            self._endpoint.deleted += re.findall("<Key>(.*?)</Key>", sent.decode())
        answer = self._endpoint.answer(self.command, self.path)
        if answer is None:
            self.close_connection = True
            return
        status, body = answer
        self.send_response(status)
        self.send_header("ETag", '"1"')
        if self.command == "HEAD" and path in self._endpoint.marks:
            self.send_header("x-amz-meta-upload", self._endpoint.marks[path])
        self.send_header("Last-Modified", "Mon, 02 Mar 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the library's names

    def log_message(self, *_: object) -> None:
        """Be quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is no news."""


@contextmanager
def an_s3_endpoint() -> Iterator[S3Endpoint]:
    endpoint = S3Endpoint(S3Server(""))
    server = _Server(("127.0.0.1", 0), partial(_Handler, endpoint))
    endpoint.server = S3Server(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
