"""What the dashboard shows of a page: by the type and the character set that its site gave it."""

import base64
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.dashboard_actions import submit
from tests.e2e.polling import ended
from tests.harness.dashboard import PATIENCE, Visitor
from tests.harness.programs import Program, service

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
SCRIPT = b"<script>parent.alert(1)</script><svg onload=parent.alert(2)>"
PAGES = {
    "cyrillic": ("text/html; charset=windows-1251", "<p>Привет".encode("cp1251")),
    "kanji": ('text/plain; charset="Shift_JIS"', "日本語".encode("shift_jis")),
    "unknown": ("text/html; charset=x-none", "<p>Grüße".encode()),
    "none": ("text/plain", "Grüße".encode()),
    "garbled": ("text/plain; charset=utf-16", b"\x00\xd8\x00"),
    "image": ("image/png", DOT),
    "no-image": ("image/png", SCRIPT),
    "vector": ("image/svg+xml", SCRIPT),
    "mislabelled": ("text/html", DOT),
    "archive": ("application/zip", b"PK\x03\x04" + bytes(range(256))),
    "nested": ("text/html", b"<div>" * 200_000),
    "imitation": ("application/octet-stream; note=text/html", SCRIPT),
}


class _Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, body = PAGES[self.path.removeprefix("/")]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def running(site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    local = {
        "CONVEYOR_DIRECT_ALLOW_PRIVATE": "127.0.0.1",
        "CONVEYOR_DIRECT_PORTS": site.rpartition(":")[2],
        "CONVEYOR_DIRECT_DELAY": "0s",
        "CONVEYOR_DIRECT_ROBOTS": "false",
    }
    data = tmp_path_factory.mktemp("data")
    environ = FAST_RETRIES | SHORT_GRACE | local
    with service(data=data, gateway="direct:", environ=environ) as program:
        yield program


@pytest.fixture(scope="module")
def job_id(running: Program, site: str) -> str:
    with client_of(running) as api:
        job_id = submit(api, *(f"{site}/{name}" for name in PAGES), retries=0)
        assert ended(api, job_id)["stats"]["successful"] == len(PAGES)
    return job_id


@pytest.fixture
def visitor(visitor: Visitor) -> Iterator[Visitor]:
    yield visitor
    assert visitor.complaints == []
    assert visitor.left == []


def opened(visitor: Visitor, job_id: str, name: str) -> Locator:
    page = visitor.open(f"jobs/{job_id}/rows", "table.rows")
    page.get_by_role("button", name=f"/{name}").click()
    return page.get_by_role("dialog")


def test_text_is_read_in_the_character_set_of_its_type(visitor: Visitor, job_id: str) -> None:
    for name, text in {"cyrillic": "Привет", "unknown": "Grüße"}.items():
        panel = opened(visitor, job_id, name)
        expect(panel.frame_locator("iframe").locator("body")).to_have_text(text)
        visitor.page.keyboard.press("Escape")
    texts = {"kanji": "日本語", "none": "Grüße", "garbled": "\ufffd"}
    for name, text in texts.items():
        expect(opened(visitor, job_id, name).locator("pre")).to_contain_text(text)
        visitor.page.keyboard.press("Escape")


def test_an_image_is_shown_and_what_only_claims_to_be_one_is_not(
    visitor: Visitor, job_id: str
) -> None:
    image = opened(visitor, job_id, "image").get_by_alt_text("The scraped image")
    expect(image).to_have_js_property("naturalWidth", 1)
    visitor.page.keyboard.press("Escape")
    panel = opened(visitor, job_id, "no-image")
    expect(panel).to_contain_text("download it to see it")
    expect(panel.locator("img, pre, iframe")).to_have_count(0)
    visitor.page.keyboard.press("Escape")
    expect(opened(visitor, job_id, "vector").locator("pre")).to_have_text(SCRIPT.decode())


def test_a_binary_body_is_offered_for_download_alone(visitor: Visitor, job_id: str) -> None:
    for name in ("archive", "imitation", "mislabelled"):
        panel = opened(visitor, job_id, name)
        expect(panel).to_contain_text("download it to see it")
        expect(panel.get_by_role("link", name="Download")).to_be_visible()
        expect(panel.locator("pre, iframe, img")).to_have_count(0)
        visitor.page.keyboard.press("Escape")


def test_a_page_that_takes_long_to_parse_is_shown_as_its_source(
    visitor: Visitor, job_id: str
) -> None:
    panel = opened(visitor, job_id, "nested")
    expect(panel.locator("pre")).to_contain_text("<div><div>")
    expect(panel).to_contain_text("shown as its source")
    expect(panel.locator("iframe")).to_have_count(0)
