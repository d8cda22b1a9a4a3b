"""A server that answers as a test tells it to."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import ClassVar

Answer = tuple[int, dict[str, str], bytes]


class Answers(BaseHTTPRequestHandler):
    """Answers by path, from a table a test fills; each answer says how it goes wrong.

    Of several for a path each is given once, and the last from then on.
    """

    protocol_version = "HTTP/1.1"
    table: ClassVar[dict[str, Answer | list[Answer]]]
    seen: ClassVar[list[str]]
    hang_up: ClassVar[bool]

    def do_GET(self) -> None:
        self.seen.append(f"{self.command} {self.path}")
        found = self.table[self.path]
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        status, headers, body = found
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if self.hang_up or int(headers.get("Content-Length", 0)) > len(body):
            self.close_connection = True

    do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def served(answers: type[Answers]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), answers) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
