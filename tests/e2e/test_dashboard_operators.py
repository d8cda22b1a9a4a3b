"""The operators' page in a real browser: what it shows of all callers, to whom, and what it does."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.dashboard_actions import (
    EVIL,
    LOOKS,
    Look,
    a_dead_letter,
    check,
    check_pages,
    latest_run,
    operate,
    redrive,
    submit,
)
from tests.e2e.polling import until
from tests.e2e.test_keys import create
from tests.harness.dashboard import PATIENCE, visiting
from tests.harness.programs import Program, service

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

SLOW = "https://slow.example/?ms=60000"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def running(gateway: Program, data: Path) -> Iterator[Program]:
    keys = {"CONVEYOR_AUTH": "keys", "CONVEYOR_GATEWAY_KEY": "the-gateways"}
    environ = FAST_RETRIES | SHORT_GRACE | keys
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


@pytest.fixture(scope="module")
def operator(running: Program, data: Path) -> str:
    key: str = create(data, "--caller", "ops", "--scope", "operator")["key"]
    return key


@pytest.fixture(scope="module")
def anns_key(running: Program, data: Path) -> str:
    key: str = create(data, "--caller", "ann")["key"]
    return key


@pytest.fixture
def ann(running: Program, anns_key: str) -> Iterator[httpx.Client]:
    with client_of(running, key=anns_key) as client:
        yield client


@pytest.fixture
def root(running: Program) -> str:
    return running.url.removesuffix("/v1")


def test_an_operator_finds_a_callers_run_pauses_resumes_and_stops_it(
    browser: Browser, root: str, operator: str, ann: httpx.Client
) -> None:
    job_id = submit(ann, SLOW, name=f"Prices {EVIL}")
    with visiting(browser, root, operator) as visitor:
        page = visitor.open("", ".empty")
        expect(page.get_by_text("Prices")).to_have_count(0)  # its own jobs only
        page.get_by_role("link", name="Operators").click()
        row = page.get_by_role("row", name="Prices")
        expect(row).to_contain_text(EVIL)
        expect(row).to_contain_text("ann")
        operate(visitor, "Pause", "Prices", "ann")
        expect(row).to_contain_text("Paused")
        assert latest_run(ann, job_id)["pause_state"] == "paused"
        operate(visitor, "Resume", "Prices", "ann")
        expect(row).to_contain_text("Running")
        page.get_by_role("link", name="Callers").click()
        page.get_by_role("link", name="ann", exact=True).click()
        expect(page.get_by_role("row", name="Prices")).to_contain_text("Running")
        operate(visitor, "Stop", "Prices", "ann")
        until(lambda: latest_run(ann, job_id)["status"] == "stopped")
        expect(page.get_by_role("row", name="Prices")).to_contain_text("Stopped")
        page.get_by_role("link", name="System").click()
        expect(page.locator("table.engines")).to_contain_text("sqlite")
        expect(page.locator("table.processes")).to_contain_text("Serve")
        page.get_by_role("link", name="Dead letters").click()
        expect(page.get_by_text("No dead letters")).to_be_visible()
        assert visitor.complaints == []


def test_another_key_sees_neither_the_page_nor_another_callers_data(
    browser: Browser, root: str, anns_key: str, running: Program, data: Path
) -> None:
    with client_of(running, key=create(data, "--caller", "bob")["key"]) as bob:
        submit(bob, SLOW, name="Secret of Bob")
    with visiting(browser, root, anns_key) as visitor:
        with visitor.page.expect_response(lambda answer: answer.url.endswith("/v1/caller")):
            page = visitor.open("", "h1")
        expect(page.get_by_role("link", name="Operators")).to_have_count(0)
        assert visitor.complaints == []
        for path in ("", "/callers", "/callers/bob", "/dead-letters", "/system"):
            visitor.open(f"operators{path}", "[role=alert]")
            shown = page.locator("main").inner_text()
            assert "Secret" not in shown
            assert "for operators" in shown


@pytest.mark.long
@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_every_page_for_operators_is_accessible_and_fits(
    browser: Browser,
    root: str,
    operator: str,
    ann: httpx.Client,
    look: Look,
) -> None:
    size, scheme = look
    submit(ann, SLOW, name="A rather long name of a job " * 3)
    pages = {
        "operators": "table.runs",
        "operators?caller=ann": "table.runs",
        "operators/callers": "table.callers",
        "operators/callers/ann": "table.jobs",
        "operators/dead-letters": ".letter",
        "operators/system": "table.processes",
    }
    with visiting(browser, root, operator, size=size, scheme=scheme) as visitor:
        # No step of the embedded engine gives a message up within a test.
        body = {"dead_letters": [a_dead_letter()], "next_cursor": None}
        visitor.page.route("**/operator/dead_letters?*", lambda route: route.fulfill(json=body))
        check_pages(visitor, pages)
        page = visitor.open("operators/callers", "table.callers")
        expect(page.get_by_role("link", name="Operators")).to_be_visible()
        page.get_by_role("link", name="Live runs", exact=True).click()
        page.get_by_role("button", name="Stop A rather").first.click()
        page.wait_for_selector("dialog form")
        check(visitor, "a confirmation")
        assert visitor.complaints == []


@pytest.mark.long
def test_a_dead_letter_is_redriven(browser: Browser, root: str, operator: str) -> None:
    with visiting(browser, root, operator) as visitor:
        redrive(visitor)
        assert visitor.complaints == []


@pytest.mark.long
def test_in_development_the_page_is_shown_without_a_key(
    browser: Browser, gateway: Program, tmp_path: Path
) -> None:
    with (
        service(data=tmp_path, gateway=gateway.url, environ=SHORT_GRACE, role="dev") as program,
        visiting(browser, program.url.removesuffix("/v1")) as visitor,
    ):
        page = visitor.open("", "h1")
        page.get_by_role("link", name="Operators").click()
        expect(page.get_by_text("Nothing is running")).to_be_visible()
        assert visitor.complaints == []
