"""Every page and every action of the dashboard with jobs of 100,000 rows, in each look."""

import zipfile
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.certificates import Authority
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.dashboard_actions import (
    DRAINED_WITHIN,
    LOOKS,
    check,
    check_pages,
    close_rerun_and_delete_a_run,
    delete,
    export,
    heading,
    keep_a_schedule,
    latest_run,
    operate,
    paste,
    pause_resume_and_stop,
    read_row,
    redrive,
    rerun_group,
    upload,
    use_webhook,
)
from tests.e2e.polling import ended, until
from tests.e2e.receiver import receiving
from tests.e2e.test_keys import create
from tests.harness.dashboard import PATIENCE, Visitor, visiting
from tests.harness.programs import Program, service

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(7_200)]

expect.set_options(timeout=PATIENCE)

ROWS = 100_000
EACH = 50  # one row of so many fails
FAILED = ROWS // EACH
HOSTS = 3
FAILING = ("permanent", "nohost", "captcha", "timedout")
GROUPS = HOSTS * len(FAILING)
GONE = "permanent.shop0.example"
KEYS = {"CONVEYOR_AUTH": "keys", "CONVEYOR_GATEWAY_KEY": "the-gateways"}
CALLER = "ann"
NAME = "a-hundred-thousand.txt"
LIVE = "live.csv"


def _urls() -> list[str]:
    """A list with failures of every kind at every host, and small pages."""
    return [
        f"https://{FAILING[n // EACH % len(FAILING)]}.shop{n // EACH % HOSTS}.example/{n}"
        if n % EACH == 0
        else f"https://ok.shop{n % HOSTS}.example/{n}?size={2_048 if n < EACH else 300}"
        for n in range(ROWS)
    ]


def _slow_list() -> bytes:
    rows = (f"{n},https://slow.shop.example/{n}?ms=300&size=300\n" for n in range(ROWS))
    return ("sku,link\n" + "".join(rows)).encode()


def test_every_page_and_action_works_with_jobs_of_100000_rows(
    browser: Browser, gateway: Program, tmp_path: Path
) -> None:
    with (
        ExitStack() as stack,
        receiving(Authority(tmp_path)) as receiver,
        service(
            data=tmp_path / "data",
            gateway=gateway.url,
            environ=FAST_RETRIES | SHORT_GRACE | KEYS | receiver.environ,
        ) as program,
    ):
        root = program.url.removesuffix("/v1")
        key = create(tmp_path / "data", "--caller", CALLER, "--scope", "operator")["key"]
        api = stack.enter_context(client_of(program, key=key))
        with visiting(browser, root, key) as visitor:
            job_id = upload(visitor, NAME, "\n".join(_urls()).encode())
            assert (visitor.complaints, visitor.left) == ([], [])
        run = ended(api, job_id, within=DRAINED_WITHIN)
        assert (run["stats"]["total"], run["stats"]["failed"]) == (ROWS, FAILED)
        for size, scheme in LOOKS:
            with visiting(browser, root, key, size=size, scheme=scheme) as visitor:
                find_the_job(visitor)
                look_at_the_job(visitor, job_id)
                page_through_rows(visitor, job_id)
                rerun_one_group(visitor, api, job_id)
                export_the_job(visitor, job_id)
                use_webhook(visitor, api, receiver, job_id)
                follow_a_live_job(visitor, api)
                submit_pasted_urls(visitor)
                keep_a_schedule(visitor, api)
                close_rerun_and_delete_a_run(visitor, api)
                redrive(visitor)
                sign_out_and_in(visitor, key)
                assert (visitor.complaints, visitor.left) == ([], [])


def find_the_job(visitor: Visitor) -> None:
    check_pages(visitor, {"submit": "textarea", "": "table.jobs"})
    page = visitor.page
    page.get_by_label("Search jobs").fill("hundred-thous")
    expect(page.locator("tbody tr")).to_have_count(1)
    # Each response redraws the list: a click meanwhile could hit a row that is removed.
    with page.expect_response(lambda answer: "/v1/jobs?" in answer.url):
        page.get_by_label("Search jobs").fill("")
    with page.expect_response(lambda answer: "/v1/jobs?" in answer.url):
        page.get_by_role("link", name="With failures").click()
    expect(page.get_by_role("row", name=NAME)).to_contain_text(f"{FAILED:,} failed")
    page.get_by_role("link", name=NAME).click()
    expect(page.locator(".funnel")).to_contain_text(f"Tasks{ROWS:,}")


def look_at_the_job(visitor: Visitor, job_id: str) -> None:
    pages = {
        f"jobs/{job_id}": ".reasons",
        f"jobs/{job_id}/failures": ".group",
        f"jobs/{job_id}/rows": "table.rows",
        f"jobs/{job_id}/runs": ".run",
        f"jobs/{job_id}/settings": "text=Add webhook",
        "operators/callers": "table.callers",
        "operators/system": "table.processes",
    }
    check_pages(visitor, pages)


def page_through_rows(visitor: Visitor, job_id: str) -> None:
    page = visitor.open(f"jobs/{job_id}/rows", "table.rows")
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("example/0")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("Page 2")).to_be_visible()
    expect(rows.first).to_contain_text("example/50")
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_text("Page 1")).to_be_visible()
    read_row(visitor, rows.nth(7), "<title>Mock page</title>")
    page.get_by_role("link", name="Failed", exact=True).click()
    expect(rows.nth(1)).to_contain_text("Failed")
    for number in range(2, 6):
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text(f"Page {number}")).to_be_visible()
    expect(rows.last).to_contain_text(f"example/{(number * 50 - 1) * EACH}")
    page.get_by_role("link", name="Not finished").click()
    expect(page.get_by_text("No rows here")).to_be_visible()


def rerun_one_group(visitor: Visitor, api: httpx.Client, job_id: str) -> None:
    before = latest_run(api, job_id)["run_sequence"]
    page = visitor.open(f"jobs/{job_id}/failures", ".group")
    expect(page.get_by_role("article")).to_have_count(GROUPS)
    group = page.get_by_role("article").filter(has_text=GONE)
    group.get_by_role("button", name="Attempts").click()
    expect(page.get_by_role("dialog").locator(".timeline")).to_contain_text("RESP002")
    page.keyboard.press("Escape")
    counted = group.locator(".count b").inner_text()
    rerun_group(visitor, group)
    run = ended(api, job_id, within=DRAINED_WITHIN)
    assert (run["run_sequence"], run["stats"]["failed"]) == (before + 1, FAILED)
    assert run["inherited_tasks"] == ROWS - int(counted)
    expect(heading(page)).to_contain_text("Completed")
    visitor.open(f"jobs/{job_id}/runs", ".run")
    expect(page.locator(".run").first).to_contain_text("inherited from earlier runs")


def export_the_job(visitor: Visitor, job_id: str) -> None:
    with zipfile.ZipFile(export(visitor, job_id)) as packed:
        assert len(packed.namelist()) > ROWS - FAILED


def follow_a_live_job(visitor: Visitor, api: httpx.Client) -> None:
    """Upload a list, act on its run as an operator and as its owner, and delete it."""
    job_id = upload(visitor, LIVE, _slow_list(), max_inflight=5)
    page = visitor.page
    until(lambda: latest_run(api, job_id)["stats"]["total"] == ROWS, within=DRAINED_WITHIN)
    expect(page.locator(".funnel")).to_contain_text(f"Tasks{ROWS:,}")
    pages = {
        f"jobs/{job_id}": ".plot canvas",
        f"jobs/{job_id}/rows?status=processing": "table.rows",
        f"jobs/{job_id}/failures": "text=No failures",
        "operators": "table.runs",
    }
    check_pages(visitor, pages)
    row = page.get_by_role("row", name=LIVE)
    page.get_by_role("button", name=f"Pause {LIVE}").click()
    check(visitor, "a confirmation")
    page.keyboard.press("Escape")
    operate(visitor, "Pause", LIVE, CALLER)
    expect(row).to_contain_text("Paused")
    operate(visitor, "Resume", LIVE, CALLER)
    expect(row).to_contain_text("Running")
    pause_resume_and_stop(visitor, api, job_id)

    page.get_by_role("button", name="Rerun", exact=True).click()
    page.get_by_label("All tasks").check()
    check(visitor, "the form of a rerun")
    page.get_by_role("dialog").get_by_role("button", name="Rerun").click()
    expect(heading(page)).to_contain_text("Running")
    visitor.open("operators", "table.runs")
    operate(visitor, "Stop", LIVE, CALLER)
    until(lambda: latest_run(api, job_id)["status"] == "stopped", within=DRAINED_WITHIN)
    delete(visitor, api, job_id)


def submit_pasted_urls(visitor: Visitor) -> None:
    """Not all of them: a browser takes minutes for a text of 100,000 lines."""
    paste(visitor, _urls()[:1_000], "Pasted")
    expect(heading(visitor.page)).to_contain_text("Completed")


def sign_out_and_in(visitor: Visitor, key: str) -> None:
    page = visitor.open("", "table.jobs")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("form.sign-in")
    check(visitor, "sign in")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("table.jobs")
