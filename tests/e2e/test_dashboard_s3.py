"""Lists go from the browser to the storage itself: the dashboard over a real S3 server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect

from conveyor.adapters.s3.address import S3Address, parse_address
from conveyor.adapters.s3.setup import set_up_bucket
from tests.e2e.conftest import SHORT_GRACE
from tests.harness.dashboard import PATIENCE, visiting
from tests.harness.programs import Program, service
from tests.s3_server import S3Server

pytestmark = [pytest.mark.browser, pytest.mark.long]

expect.set_options(timeout=PATIENCE)

URLS = [f"https://ok.example/{n}" for n in range(20)]
# Comments make the list long enough to be sent in many parts.
LIST = "\n".join(f"{url}\n# {'-' * 200_000}" for url in URLS).encode()
RECORD_PROGRESS = """
() => {
window.seen = [];
new MutationObserver(() => {
  const bar = document.querySelector(".uploading progress");
  if (bar) window.seen.push(bar.value);
}).observe(document, {subtree: true, childList: true, attributes: true});
}
"""


@pytest.fixture
def address(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own, without CORS for anybody yet."""
    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    address = seaweedfs.new_address(bucket=f"browser-{uuid4().hex[:12]}")
    set_up_bucket(_place(address), ["https://elsewhere.example"], has_blobs=True)
    return address


@pytest.fixture
def program(
    seaweedfs: S3Server, address: str, gateway: Program, tmp_path: Path
) -> Iterator[Program]:
    at = {"CONVEYOR_BODIES": f"s3:{address}", "CONVEYOR_BLOBS": f"s3:{address}"}
    environ = {**seaweedfs.environ, **at, **SHORT_GRACE}
    with service(data=tmp_path, gateway=gateway.url, environ=environ) as program:
        yield program


def test_a_list_is_put_to_its_presigned_url_with_progress(
    browser: Browser, seaweedfs: S3Server, program: Program, address: str
) -> None:
    root = program.url.removesuffix("/v1")
    set_up_bucket(_place(address), [root], has_blobs=True)
    with visiting(browser, root, "a key") as visitor:
        puts: list[str] = []
        visitor.page.on(
            "request", lambda sent: puts.append(sent.url) if sent.method == "PUT" else None
        )
        page = visitor.open("submit", "textarea")
        page.evaluate(RECORD_PROGRESS)
        _submit(page)

        expect(page.get_by_role("heading", level=1)).to_contain_text("Completed")
        expect(page.locator(".funnel")).to_contain_text("Successful20")
        assert [urlsplit(url).netloc for url in puts] == [urlsplit(seaweedfs.url).netloc]
        shares = page.evaluate("window.seen")
        assert shares == sorted(shares)
        assert shares[-1] == 1
        page.get_by_role("link", name="Rows").click()
        page.get_by_role("row", name="https://ok.example/7").get_by_role("button").click()
        expect(page.frame_locator("iframe").locator("body")).to_contain_text("queue")
        assert visitor.complaints == []


def test_a_bucket_that_does_not_allow_the_page_is_named_as_a_cause(
    browser: Browser, program: Program
) -> None:
    with visiting(browser, program.url.removesuffix("/v1"), "a key") as visitor:
        page = visitor.open("submit", "textarea")
        _submit(page)
        expect(page.get_by_role("alert")).to_contain_text("CORS")


def _submit(page: Page) -> None:
    page.get_by_role("button", name="Upload a list").click()
    files: Any = {"name": "list.txt", "mimeType": "text/plain", "buffer": LIST}
    page.get_by_label("List of tasks").set_input_files(files)
    page.get_by_role("button", name="Submit job").click()


def _place(address: str) -> S3Address:
    place = parse_address(address, {})
    assert place
    return place
