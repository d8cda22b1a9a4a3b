"""The frame around the pages of the dashboard: addresses, who is signed in, and hidden tabs."""

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.e2e.conftest import SHORT_GRACE
from tests.e2e.dashboard_actions import OK, heading, submit
from tests.e2e.polling import ended
from tests.harness.dashboard import PATIENCE, Visitor, visiting
from tests.harness.programs import Program, service

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => window.isShown !== true})"
TURN = (
    "(shown) => { window.isShown = shown; document.dispatchEvent(new Event('visibilitychange')) }"
)


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


def test_a_hidden_list_is_loaded_again_when_it_is_shown(
    visitor: Visitor, api: httpx.Client
) -> None:
    ended(api, submit(api, OK))
    page = visitor.page
    page.clock.install()
    visitor.open("", "table.jobs")

    def asked() -> int:
        return sum("/v1/jobs?" in url for url in visitor.requested)

    page.evaluate(HIDDEN)
    before = asked()
    page.clock.pause_at(page.evaluate("Date.now() / 1000 + 60"))
    assert asked() == before
    with page.expect_response("**/v1/jobs?*"):
        page.evaluate(TURN, True)
    assert asked() == before + 1


@pytest.mark.parametrize("status", [0, 429, 503])
def test_a_run_that_could_not_be_read_is_read_again(
    visitor: Visitor, api: httpx.Client, status: int
) -> None:
    job_id = submit(api, OK)
    ended(api, job_id)
    page = visitor.page
    page.clock.install()
    page.route(
        "**/runs/*", lambda one: one.fulfill(status=status, json={}) if status else one.abort()
    )
    visitor.open(f"jobs/{job_id}", "[role=alert]")
    page.unroute("**/runs/*")
    page.clock.fast_forward(5_000)
    expect(page.locator(".funnel")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_page_notices_a_run_that_was_begun_elsewhere(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, OK)
    ended(api, job_id)
    visitor.page.clock.install()
    page = visitor.open(f"jobs/{job_id}/runs", ".run")
    api.post(f"/jobs/{job_id}/rerun").raise_for_status()
    page.clock.fast_forward(15_000)
    expect(page.locator(".run")).to_have_count(2)


@pytest.mark.parametrize("path", ["jobs/100%", "%", "%ff", "constructor", "nowhere"])
def test_an_address_that_names_no_page_says_so(visitor: Visitor, path: str) -> None:
    page = visitor.open(path, "text=There is no such page")
    expect(page.get_by_role("link", name="Jobs", exact=True)).to_be_visible()
    assert visitor.complaints == []


def test_a_page_that_does_not_load_says_so_and_is_loaded_again(visitor: Visitor) -> None:
    page = visitor.open("", "h1")
    page.route("**/pages/submit.js", lambda route: route.abort("connectionrefused"))
    page.get_by_role("link", name="New job").first.click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.unroute("**/pages/submit.js")
    page.get_by_role("button", name="Reload").click()
    expect(heading(page)).to_have_text("New job")


def test_a_page_that_loads_late_does_not_replace_the_one_that_was_opened_since(
    visitor: Visitor,
) -> None:
    held = list[Route]()
    page = visitor.open("", "h1")
    page.route("**/pages/operators.js", lambda route: held.append(route))  # noqa: PLW0108
    with page.expect_request("**/pages/operators.js"):
        page.evaluate("location.hash = '#/operators'")
    visitor.open("submit", "textarea")
    held[0].continue_()
    page.evaluate(
        "import('./assets/pages/operators.js').then(() => new Promise(requestAnimationFrame))"
    )
    expect(heading(page)).to_have_text("New job")


def test_only_a_service_for_development_is_opened_without_a_key(
    browser: Browser, running: Program, gateway: Program, tmp_path: Path
) -> None:
    with visiting(browser, running.url.removesuffix("/v1")) as visitor:
        page = visitor.open("", "form.sign-in")
        assert page.evaluate("sessionStorage.length") == 0
        assert visitor.complaints == []
    keys = SHORT_GRACE | {"CONVEYOR_AUTH": "keys"}
    with (
        service(data=tmp_path / "keys", gateway=gateway.url, environ=keys) as program,
        visiting(browser, program.url.removesuffix("/v1")) as visitor,
    ):
        page = visitor.open("", "form.sign-in")
        page.goto(f"{visitor.root}/docs")
        expect(page.locator("details").first).to_be_visible()
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
