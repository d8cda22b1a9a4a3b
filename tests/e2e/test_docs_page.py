"""The documentation page in a real browser: every call is on it, from this origin alone."""

from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route, expect

from conveyor.api.routes import ROUTES
from tests.e2e.dashboard_actions import LOOKS, Look, check
from tests.harness.dashboard import PATIENCE, visiting
from tests.harness.programs import Program

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)


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


def test_calls_are_in_groups_with_anchors_and_found_by_their_fields(page: Page, root: str) -> None:
    groups = page.locator("nav a").all_text_contents()
    assert groups[:3] == ["Jobs", "Runs", "Results"]
    assert page.locator("main > section").count() == len(groups)
    page.get_by_label("Search calls and fields").fill("duration_ms history")
    shown = page.locator("details:visible .path").all_text_contents()
    assert shown
    assert all(path.endswith("/history") for path in shown)
    page.get_by_label("Search calls and fields").fill("nothing like it")
    assert page.get_by_text("No call or field matches.").is_visible()
    page.goto(f"{root}/docs#get_jobs")
    page.reload()
    page.wait_for_selector("details#get_jobs[open]")


def test_an_address_that_names_no_call_shows_them_all(
    page: Page, root: str, complaints: list[str]
) -> None:
    for named in ("100%", "%ff", "no-such-call"):
        page.goto(f"{root}/docs#{named}")
        page.reload()
        expect(page.locator("details")).to_have_count(len(ROUTES))
    assert complaints == []


def test_without_a_clipboard_there_is_no_button_to_copy(page: Page) -> None:
    page.click("summary:has-text('Get a run')")
    expect(page.locator("details[open] button.copy").first).to_be_visible()
    # As over plain HTTP from another machine.
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.reload()
    expect(page.locator("details[open] pre").first).to_be_visible()
    expect(page.locator("details[open] button.copy:visible")).to_have_count(0)


def test_an_opened_call_says_what_every_field_means_and_which_values_it_takes(page: Page) -> None:
    page.click("summary:has-text('Get a run')")
    call = page.locator("details[open]")
    expect(call).to_contain_text("Response 200")
    text = call.inner_text()
    for words in ("How many tasks were given up.", "completed", "paused", "Copy"):
        assert words in text
    assert not call.locator("tbody tr:has(td:nth-child(2):empty)").count()


def test_a_call_is_tried_with_the_key_of_the_reader(page: Page) -> None:
    page.get_by_label("API key").fill("the key of a reader")
    page.click("summary:has-text('Submit a job')")
    page.click("details[open] button.send")
    output = page.locator("details[open] form.try pre")
    expect(output).to_contain_text('"accepted_tasks": 1')
    assert output.inner_text().startswith("201 ")
    page.reload()
    page.wait_for_selector("details")
    assert page.get_by_label("API key").input_value() == "the key of a reader"
    assert "reader" not in page.url


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/json"])
def test_an_answer_that_is_not_one_json_document_is_shown_as_it_is(page: Page, kind: str) -> None:
    lines = '{"line": 1}\n{"line": 2}\n'
    page.route("**/ingest_errors", lambda route: route.fulfill(content_type=kind, body=lines))
    call = page.locator("details", has=page.locator(".path", has_text="/ingest_errors")).first
    call.locator("summary").click()
    call.locator("form.try input").fill("01M7GNPVD0697FEM6F7VYWRK5F")
    call.locator("button.send").click()
    expect(call.locator("form.try pre")).to_have_text(f"200 OK\n\n{lines}")


def test_an_opened_call_shows_how_to_make_it_and_what_comes_back(page: Page, root: str) -> None:
    page.click("summary:has-text('Submit a job')")
    call = page.query_selector("details[open]")
    assert call
    text = call.inner_text()
    for word in (f"curl -X POST '{root}/v1/jobs'", "X-API-Key", "Idempotency-Key", "max_inflight"):
        assert word in text
    for status in ("201", "202", "400", "409", "413"):
        assert status in text


def test_the_page_works_behind_a_path_prefix(
    page: Page, root: str, requests: list[Request], complaints: list[str]
) -> None:
    def without_prefix(route: Route) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/behind/", "/", 1)))

    page.route(f"{root}/behind/**", without_prefix)
    requests.clear()
    page.goto(f"{root}/behind/docs")
    page.get_by_label("API key").fill("the key of a reader")
    page.click("summary:has-text('Submit a job')")
    expect(page.locator("details[open]")).to_contain_text(f"'{root}/behind/v1/jobs'")
    page.click("details[open] button.send")
    expect(page.locator("details[open] form.try pre")).to_contain_text('"accepted_tasks": 1')
    page.get_by_role("link", name="dashboard").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert all(one.url.startswith(f"{root}/behind/") for one in requests)
    assert complaints == []
    page.unroute_all(behavior="ignoreErrors")  # the dashboard goes on asking


def test_a_service_that_forwards_keys_is_given_none_unasked(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    assert page.get_by_label("API key").input_value() == ""


def test_the_page_fits_a_narrow_screen_and_has_nothing_to_complain_of(
    page: Page, complaints: list[str]
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.evaluate("document.querySelectorAll('details').forEach((call) => (call.open = true))")
    expect(page.locator("details > .beside")).to_have_count(len(ROUTES))
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]
    assert complaints == []


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_the_page_is_accessible_and_fits(browser: Browser, root: str, look: Look) -> None:
    size, scheme = look
    with visiting(browser, root, size=size, scheme=scheme) as visitor:
        visitor.page.goto(f"{root}/docs")
        for call in ("Submit a job", "Get a run"):
            visitor.page.click(f"summary:has-text('{call}')")
        expect(visitor.page.locator("details > .beside")).to_have_count(2)
        check(visitor, "the documentation")
        assert visitor.complaints == []


def _addresses(requests: list[Request]) -> list[SplitResult]:
    return [urlsplit(request.url) for request in requests]
