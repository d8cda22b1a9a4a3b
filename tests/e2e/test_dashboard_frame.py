"""The frame around the pages of the dashboard: addresses, who is signed in, and hidden tabs."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import SHORT_GRACE
from tests.e2e.dashboard_actions import heading, submit
from tests.harness.dashboard import PATIENCE, Visitor, visiting
from tests.harness.programs import Program, service

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => window.isShown !== true})"
TURN = (
    "(shown) => { window.isShown = shown; document.dispatchEvent(new Event('visibilitychange')) }"
)


@pytest.fixture
def visitor(browser: Browser, running: Program, api: httpx.Client) -> Iterator[Visitor]:
    key = api.headers["X-API-Key"]
    with visiting(browser, running.url.removesuffix("/v1"), key) as visitor:
        yield visitor


def test_a_hidden_page_follows_nothing_and_a_shown_one_follows_once(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, "https://slow.example/?ms=60000")
    page = visitor.page
    cut = list[str]()
    page.on("requestfailed", lambda sent: cut.append(sent.url))

    def opened() -> int:
        return sum(url.endswith("/events") for url in visitor.requested)

    page.add_init_script(HIDDEN)
    visitor.open(f"jobs/{job_id}", ".facts")
    page.wait_for_load_state("networkidle")
    assert opened() == 0
    for turn in (1, 2):  # twice without being hidden between, as a browser may tell it
        with page.expect_response("**/events"):
            page.evaluate(TURN, True)
        expect(heading(page)).to_contain_text("Running")
        assert opened() == turn
    assert [url.rpartition("/")[2] for url in cut] == ["events"]
    with page.expect_event("requestfailed"):
        page.evaluate(TURN, False)
    assert len(cut) == 2


@pytest.mark.parametrize("path", ["jobs/100%", "%", "%ff", "constructor", "nowhere"])
def test_an_address_that_names_no_page_says_so(visitor: Visitor, path: str) -> None:
    page = visitor.open(path, "text=There is no such page")
    expect(page.get_by_role("link", name="Jobs", exact=True)).to_be_visible()
    assert visitor.complaints == []


def test_only_a_service_for_development_is_opened_without_a_key(
    browser: Browser, running: Program, gateway: Program, tmp_path: Path
) -> None:
    with visiting(browser, running.url.removesuffix("/v1")) as visitor:
        page = visitor.open("", "form.sign-in")
        assert page.evaluate("sessionStorage.length") == 0
        assert visitor.complaints == []
    with (
        service(data=tmp_path, gateway=gateway.url, environ=SHORT_GRACE, role="dev") as program,
        visiting(browser, program.url.removesuffix("/v1")) as visitor,
    ):
        page = visitor.open("", ".empty")
        expect(page.get_by_role("button", name="Change key")).to_be_visible()
        page.goto(f"{visitor.root}/docs")
        expect(page.get_by_label("API key")).to_have_value("my-key")
        page.evaluate("sessionStorage.clear()")
        page.reload()
        expect(page.get_by_label("API key")).to_have_value("my-key")
        assert visitor.complaints == []
