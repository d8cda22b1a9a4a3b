"""A receiver of webhooks over https, that remembers what it was told."""

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import msgspec

from conveyor.testing.local.ports import free_port
from tests.certificates import Authority

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Told:
    host: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float  # Unix seconds

    @property
    def event(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.body)
        return decoded

    @property
    def event_id(self) -> str:
        return self.headers["x-zenrows-event-id"]


Answer = Callable[[Told], int]


@dataclass
class Receiver:
    port: int
    trusted: str
    told: list[Told] = field(default_factory=list)

    def url(self, path: str = "/in", host: str = HERE) -> str:
        return f"https://{host}:{self.port}{path}"

    @property
    def environ(self) -> dict[str, str]:
        """What a service needs to deliver here."""
        return {
            "SSL_CERT_FILE": self.trusted,
            "CONVEYOR_WEBHOOK_PORTS": str(self.port),
            "CONVEYOR_WEBHOOK_ALLOW_PRIVATE": "127.0.0.0/8",
        }

    def told_of(self, path: str) -> list[Told]:
        return [one for one in tuple(self.told) if one.path == path]


@contextmanager
def receiving(
    authority: Authority, *hosts: str, answer: Answer = lambda _: 200
) -> Iterator[Receiver]:
    """At every one of these addresses of this machine, on one port."""
    here = Receiver(free_port(), str(authority.trusted))
    servers = [_server(host, authority, here, answer) for host in hosts or (HERE,)]
    try:
        yield here
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _server(host: str, authority: Authority, here: Receiver, answer: Answer) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout: ClassVar[float] = 10

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            told = Told(host, self.path, headers, body, time.time())
            here.told.append(told)
            self.send_response(answer(told))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quietly."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def get_request(self) -> Any:
            connection, address = super().get_request()
            return safety.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            ), address

        def handle_error(self, *_: object) -> None:
            """Whoever was killed in the middle of it says no more."""

    safety: ssl.SSLContext = authority.server(host)
    server = Server((host, here.port), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server
