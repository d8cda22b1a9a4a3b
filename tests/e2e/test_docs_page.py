"""The documentation page in a real browser: every call is on it, from this origin alone."""

from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from conveyor.api.routes import ROUTES
from tests.harness.programs import Program

pytestmark = pytest.mark.browser


@pytest.fixture
def root(running: Program) -> str:
    return running.url.removesuffix("/v1")


@pytest.fixture
def requests() -> list[Request]:
    return []


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(
    browser: Browser, root: str, requests: list[Request], complaints: list[str]
) -> Iterator[Page]:
    """The page, shown; what it asked for and complained of is on record."""

    def asked(request: Request) -> None:
        requests.append(request)

    def heard(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            complaints.append(message.text)

    with browser.new_page() as page:
        page.on("request", asked)
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{root}/docs")
        page.wait_for_selector("details")
        yield page


def test_every_call_of_the_api_is_shown(page: Page, root: str) -> None:
    paths = httpx.get(f"{root}/openapi.json").json()["paths"]
    expected = {
        (method.upper(), path, operation["summary"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    shown = set()
    for call in page.query_selector_all("details"):
        parts = [part.text_content() or "" for part in call.query_selector_all("summary > *")]
        shown.add((parts[0], parts[1], parts[2]))
    assert len(expected) == len(ROUTES)
    assert shown == expected


def test_nothing_is_asked_of_any_other_origin(
    page: Page, root: str, requests: list[Request]
) -> None:
    page.wait_for_load_state("networkidle")
    asked = {urlsplit(request.url).path for request in requests}
    assert {"/docs", "/docs/assets/docs.css", "/docs/assets/docs.js", "/openapi.json"} <= asked
    assert {f"{part.scheme}://{part.netloc}" for part in _addresses(requests)} == {root}


def test_an_opened_call_shows_how_to_make_it_and_what_comes_back(page: Page, root: str) -> None:
    page.click("summary:has-text('Submit a job')")
    call = page.query_selector("details[open]")
    assert call
    text = call.inner_text()
    for word in (f"curl -X POST '{root}/v1/jobs'", "X-API-Key", "Idempotency-Key", "max_inflight"):
        assert word in text
    for status in ("201", "202", "400", "409", "413"):
        assert status in text


def test_the_page_fits_a_narrow_screen_and_has_nothing_to_complain_of(
    page: Page, complaints: list[str]
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for call in page.query_selector_all("summary"):
        call.click()
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]
    assert complaints == []


def _addresses(requests: list[Request]) -> list[SplitResult]:
    return [urlsplit(request.url) for request in requests]
