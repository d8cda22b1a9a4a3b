"""Lists on their way to a file input: what is told of them, and what becomes of a broken connection."""

import gzip
import io
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from conveyor.cli import sources
from conveyor.cli.remote import Refused, Remote, Unreachable
from conveyor.cli.sources import Source
from conveyor.cli.uploading import NOTHING_SAID, Form, spec, upload
from conveyor.domain.task_list.spec import ListFormat
from conveyor.errors import RefusedToStart

LIST = b"https://ok.example/\n" * 200_000


class Slots(BaseHTTPRequestHandler):
    """Gives out slots and takes lists; breaks off as many as a test says."""

    protocol_version = "HTTP/1.1"
    taken: ClassVar[dict[str, bytes]]
    asked: ClassVar[list[object]]
    keys: ClassVar[list[str | None]]
    lengths: ClassVar[list[str | None]]
    breaks: ClassVar[int]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.asked.append(json.loads(self.rfile.read(length)))
        name = f"slot-{len(self.asked)}"
        link = f"http://{self.headers['Host']}/_local/{name}?signature=s"
        headers = {"Content-Type": "text/plain"}
        self._answer(201, {"file_input_id": name, "upload": {"url": link, "headers": headers}})

    def do_PUT(self) -> None:
        self.keys.append(self.headers["X-API-Key"])
        self.lengths.append(self.headers["Content-Length"])
        assert self.headers["Content-Type"] == "text/plain"
        self.close_connection = True
        if len(self.taken) < self.breaks:
            self.taken[self.path] = self.rfile.read(1000)
            self.connection.close()
            return
        self.taken[self.path] = self._body()
        status = 413 if b"too large" in self.taken[self.path] else 200
        self._answer(status, {"status": status, "code": "payload_too_large", "detail": "So"})

    def _body(self) -> bytes:
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        whole = b""
        while length := int(self.rfile.readline(), 16):
            whole += self.rfile.read(length)
            self.rfile.readline()
        return whole

    def _answer(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def slots() -> type[Slots]:
    class Fresh(Slots):
        taken: ClassVar[dict[str, bytes]] = {}
        asked: ClassVar[list[object]] = []
        keys: ClassVar[list[str | None]] = []
        lengths: ClassVar[list[str | None]] = []
        breaks = 0

    return Fresh


@pytest.fixture
def remote(slots: type[Slots]) -> Iterator[Remote]:
    with HTTPServer(("127.0.0.1", 0), slots) as server:
        # A broken connection is complained of by the server's own thread.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        remote = Remote(f"http://127.0.0.1:{server.server_port}/v1", "a-key")
        # The server has one thread: a connection kept open would keep all others waiting.
        remote._headers["Connection"] = "close"
        yield remote
        remote._connection.close()
        server.shutdown()
        thread.join()


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "urls.txt").write_bytes(LIST)
    return str(tmp_path / "urls.txt")


def test_a_list_goes_to_its_link_whole_and_without_the_key(
    remote: Remote, slots: type[Slots], file: str
) -> None:
    assert upload(remote, Source(file), NOTHING_SAID, quiet=False) == "slot-1"
    assert slots.taken == {"/_local/slot-1?signature=s": LIST}
    assert slots.keys == [None]
    assert slots.lengths == [str(len(LIST))]
    assert slots.asked == [{"type": "txt"}]


def test_a_file_whose_upload_breaks_is_sent_once_more_to_another_slot(
    remote: Remote, slots: type[Slots], file: str
) -> None:
    slots.breaks = 1
    assert upload(remote, Source(file), NOTHING_SAID, quiet=True) == "slot-2"
    assert slots.taken["/_local/slot-2?signature=s"] == LIST
    slots.taken.clear()
    slots.breaks = 9
    with pytest.raises(Unreachable, match=r"broke off.*\n.*nothing was submitted"):
        upload(remote, Source(file), NOTHING_SAID, quiet=True)
    assert len(slots.taken) == 2


def test_a_stream_is_sent_once_from_its_very_start(
    remote: Remote, slots: type[Slots], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CHUNK", 1000)
    for breaks in (0, 9):
        slots.breaks = breaks
        slots.taken.clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LIST)))
        source = Source("-")
        assert not source.fits_a_call()
        if not breaks:
            upload(remote, source, NOTHING_SAID, quiet=True)
            assert list(slots.taken.values()) == [LIST]
        else:
            with pytest.raises(Unreachable, match="broke off"):
                upload(remote, source, NOTHING_SAID, quiet=True)
            assert len(slots.taken) == 1


def test_a_refusal_is_told_and_not_tried_again(
    remote: Remote, slots: type[Slots], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("too large")
    with pytest.raises(Refused, match=r"So \(413 payload_too_large\)\n  pack the list"):
        upload(remote, Source(str(tmp_path / "a.txt")), NOTHING_SAID, quiet=True)
    assert len(slots.asked) == 1


@pytest.mark.parametrize("length", [len(LIST) - 1, len(LIST) + 1])
def test_a_file_that_changes_on_its_way_is_not_submitted(
    remote: Remote, slots: type[Slots], file: str, length: int
) -> None:
    source = Source(file)
    source.length = length
    with pytest.raises(RefusedToStart, match="changed while it was sent"):
        upload(remote, source, NOTHING_SAID, quiet=True)
    assert len(slots.asked) == 1


@pytest.mark.parametrize(
    ("name", "content", "kind", "packed"),
    [
        ("a.csv", b"", ListFormat.CSV, False),
        ("a.CSV.GZ", b"", ListFormat.CSV, True),
        ("a.jsonl.zst", b"", ListFormat.NDJSON, True),
        ("a.ndjson.zstd", b"", ListFormat.NDJSON, True),
        ("a.txt", b"https://a.example", ListFormat.TXT, False),
        ("a.gz", b"", ListFormat.TXT, True),
        ("list", gzip.compress(b"https://a.example", mtime=0), ListFormat.TXT, True),
        ("list", gzip.compress(b"\xef\xbb\xbf {}", mtime=0), ListFormat.NDJSON, True),
        ("list", b"{}", ListFormat.NDJSON, False),
        ("list", b"\x1f\x8bnonsense", ListFormat.TXT, True),
    ],
)
def test_kind_and_packing_are_told_by_name_and_beginning(
    tmp_path: Path, name: str, content: bytes, kind: ListFormat, packed: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    source = Source(str(tmp_path / name))
    assert (source.kind, source.is_packed) == (kind, packed)


def test_a_list_fits_a_call_by_its_lines_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST_LINES", 3)
    monkeypatch.setattr(sources, "MOST_BYTES", 10)
    file = tmp_path / "a.txt"
    for content, fits in (b"a\nb\nc\n", True), (b"a\nb\nc\nd\n", False), (b"a" * 11, False):
        file.write_bytes(content)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert Source(str(file)).fits_a_call() is fits
        stream = Source("-")
        assert stream.fits_a_call() is fits
        assert b"".join(stream.chunks()) == content


@pytest.mark.parametrize(
    ("content", "form", "csv"),
    [
        (b"url,x\n", Form(), {"header": True, "delimiter": ",", "fields": {"url": "url"}}),
        (
            b'\xef\xbb\xbf external_id ,"url"\r\n',
            Form(),
            {
                "header": True,
                "delimiter": ",",
                "fields": {"url": "url", "external_id": "external_id"},
            },
        ),
        (
            b"a\tb\n",
            Form(delimiter="tab", url_column="b", id_column="a"),
            {"header": True, "delimiter": "\t", "fields": {"url": "b", "external_id": "a"}},
        ),
        (
            b"a;b\n",
            Form(delimiter=";", no_header=True),
            {"header": False, "delimiter": ";", "fields": {"url": 0}},
        ),
        (b'"ur\nl",x\n', Form(), {"header": True, "delimiter": ",", "fields": {"url": "url"}}),
    ],
)
def test_columns_of_csv_are_told_by_its_first_line(
    tmp_path: Path, content: bytes, form: Form, csv: object
) -> None:
    for name, raw in ("a.csv", content), ("a.csv.gz", gzip.compress(content)):
        (tmp_path / name).write_bytes(raw)
        assert spec(Source(str(tmp_path / name)), form) == {"type": "csv", "csv": csv}
