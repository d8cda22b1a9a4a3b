"""The dashboard in a real browser, over a real service: what people see and do with it."""

import gzip
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Route, expect

from tests.certificates import Authority
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.dashboard_actions import (
    LOOKS,
    OK,
    Look,
    check,
    check_pages,
    close_rerun_and_delete_a_run,
    delete,
    export,
    heading,
    keep_a_schedule,
    latest_run,
    paste,
    pause_resume_and_stop,
    read_row,
    rerun_group,
    submit,
    upload,
    use_webhook,
)
from tests.e2e.polling import ended, until
from tests.e2e.receiver import Receiver, receiving
from tests.harness.dashboard import PATIENCE, Visitor, visiting
from tests.harness.programs import Program, service

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.browser

BLOCKED = re.compile(r"Content Security Policy|sandboxed")

expect.set_options(timeout=PATIENCE)

GONE = "https://permanent.example"
PLOTTED = re.compile("at most [1-9]")
SLOW = "https://slow.example/?ms=60000"
# Notes how long the page pauses, and makes these pauses short.
SHORT_PAUSES = """
window.pauses = [];
const later = window.setTimeout;
window.setTimeout = (run, after, ...rest) => {
  if (!(after >= 5000)) return later(run, after, ...rest);
  window.pauses.push(after);
  return later(run, 50, ...rest);
};
"""


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with receiving(Authority(tmp_path_factory.mktemp("certificates"))) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def running(
    gateway: Program, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    environ = FAST_RETRIES | SHORT_GRACE | receiver.environ
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=environ) as program:
        yield program


@pytest.fixture
def root(running: Program) -> str:
    return running.url.removesuffix("/v1")


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A caller of its own for each test."""
    return f"key of {request.node.name}"


@pytest.fixture
def api(running: Program, key: str) -> Iterator[httpx.Client]:
    with client_of(running, key=key) as client:
        yield client


@pytest.fixture
def visitor(visitor: Visitor) -> Iterator[Visitor]:
    yield visitor
    assert visitor.complaints == []


# What everyone does: run by `make test`.


def test_pasted_urls_are_followed_to_their_end_and_a_failed_group_is_rerun(
    visitor: Visitor, api: httpx.Client
) -> None:
    urls = [f"{OK}/{n}" for n in range(3)] + [f"{GONE}/{n}" for n in range(2)]
    job_id = paste(visitor, urls, "Pasted")
    page = visitor.page
    expect(heading(page)).to_contain_text("Completed")
    expect(page.locator(".funnel")).to_contain_text("Successful3")
    page.get_by_role("link", name=re.compile("^Failures 2")).click()
    group = page.get_by_role("article")
    expect(group).to_contain_text("permanent.example")
    expect(group).to_contain_text("RESP002")
    expect(group).to_contain_text(re.compile(rf"{re.escape(GONE)}/[01]"))  # whichever failed first

    rerun_group(visitor, group)
    expect(page.locator(".figures")).to_contain_text("Inherited3")
    run = ended(api, job_id)
    assert (run["run_sequence"], run["stats"]["completed"], run["inherited_tasks"]) == (2, 5, 3)

    visitor.open("", "table.jobs")
    expect(page.get_by_role("row", name="Pasted")).to_contain_text("2 failed")
    assert visitor.left == []


def test_a_row_shows_its_attempts_and_its_page_in_a_frame_that_can_do_nothing(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, f"{OK}/?final=https://ok.example/moved", f"{GONE}/x")
    ended(api, job_id)
    page = visitor.open(f"jobs/{job_id}/rows", "table.rows")
    row = page.get_by_role("row", name="/moved")
    expect(row).to_contain_text("kB")
    read_row(visitor, row, "<title>Mock page</title>")
    page.get_by_role("link", name="Failed", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("Page not found")


def test_the_plot_has_what_ended_before_the_page_was_opened(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, *(f"{OK}/{n}" for n in range(5)), f"{GONE}/x")
    ended(api, job_id)
    page = visitor.open(f"jobs/{job_id}", ".plot canvas")
    expect(page.get_by_role("img", name=PLOTTED)).to_be_visible()

    slow = (f"https://slow.example/{n}?ms=1000" for n in range(500))
    live = submit(api, *(f"{OK}/{n}" for n in range(20)), *slow, max_inflight=1)
    until(lambda: latest_run(api, live)["stats"]["completed"] > 20)
    no_event = {"content_type": "text/event-stream", "body": ": none\n\n"}
    page.route("**/events", lambda route: route.fulfill(**no_event))
    visitor.open(f"jobs/{live}", ".plot canvas")
    expect(page.get_by_role("img", name=PLOTTED)).to_be_visible()
    time = page.locator(".u-legend tr").first
    before = time.inner_text()
    page.unroute("**/events")
    expect(time).not_to_have_text(before)  # the events follow the timeline
    api.post(f"/jobs/{live}/stop").raise_for_status()
    expect(heading(page)).to_contain_text("Stopped")


def test_tasks_in_flight_beyond_the_limit_of_the_job_are_explained(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, SLOW, max_inflight=1)
    run = latest_run(api, job_id)
    run["stats"] |= {"in_flight": 3, "waiting_for_retry": 0}
    visitor.page.route("**/runs/*", lambda route: route.fulfill(json=run))
    visitor.page.route("**/events", lambda route: route.fulfill(status=204))
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    expect(page.locator(".funnel")).to_contain_text("In flight3incl. tasks claimed ahead")


# Hostile texts, and other callers.

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
EVIL_PAGE = f"""<!doctype html><title>{EVIL}</title><base href="https://evil.example/">
<meta http-equiv="refresh" content="0;url=https://evil.example/refresh">
<script>parent.alert(1); fetch("https://evil.example/fetch")</script>
<style>@import "https://evil.example/style"; body {{ background: url(https://evil.example/bg) }}</style>
<body onload="alert(3)" style="background: url(https://evil.example/inline)">
<p>Harmless text</p><img src="https://evil.example/image" onerror="alert(4)">
<iframe src="https://evil.example/frame"></iframe><svg><image href="https://evil.example/svg"/></svg>
<form action="https://evil.example/form"><input autofocus></form>
<a href="javascript:top.alert(5)">link</a></body>"""


KNOWN = "https://docs.zenrows.com/api-error-codes#RESP002"


class _HostileGateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        [target] = parse_qs(urlsplit(self.path).query)["url"]
        if "//page." in target:
            self._send(200, "text/html", EVIL_PAGE.encode())
        else:
            problem = {
                "code": "RESP002",
                "title": EVIL,
                "detail": EVIL,
                "status": 404,
                "type": KNOWN,
            }
            self._send(404, "application/problem+json", json.dumps(problem).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Zr-Final-Url", "https://page.example/%3Cscript%3Ealert(1)%3C/script%3E")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def hostile_gateway() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _HostileGateway)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_hostile_names_errors_and_pages_are_shown_as_text_and_run_nothing(
    browser: Browser, hostile_gateway: str, tmp_path: Path
) -> None:
    environ = FAST_RETRIES | SHORT_GRACE
    with (
        service(data=tmp_path, gateway=hostile_gateway, environ=environ) as program,
        client_of(program, key="my-key") as api,
        visiting(browser, program.url.removesuffix("/v1"), "my-key") as visitor,
    ):
        dialogs: list[str] = []

        def dismiss(dialog: Dialog) -> None:
            dialogs.append(dialog.message)
            dialog.dismiss()

        visitor.page.on("dialog", dismiss)
        urls = [f"https://page.example/?q={EVIL}", "https://bad.example/'\"><script>alert(1)"]
        job_id = submit(api, *urls, name=EVIL, metadata={EVIL[:100]: EVIL}, retries=0)
        ended(api, job_id)

        page = visitor.open("", "table.jobs")
        expect(page.get_by_role("link", name=EVIL)).to_be_visible()
        visitor.open(f"jobs/{job_id}", ".facts")
        expect(page.locator(".facts")).to_contain_text(EVIL)
        visitor.open(f"jobs/{job_id}/failures", ".group")
        expect(page.locator(".group").get_by_text(EVIL, exact=True)).to_be_visible()
        visitor.open(f"jobs/{job_id}/rows", "table.rows")
        page.get_by_role("row", name="page.example/?q").get_by_role("button").click()
        frame = page.frame_locator("iframe")
        expect(frame.locator("body")).to_contain_text("Harmless text")
        page.get_by_role("button", name="Source").click()
        expect(page.locator("pre")).to_contain_text("parent.alert(1)")

        assert page.locator("script").count() == 3, "a script was added to the page"
        assert dialogs == []
        # What the page in the frame tries is blocked, and the browser says so.
        assert all(BLOCKED.search(one) for one in visitor.complaints), visitor.complaints
        assert visitor.left == []


@pytest.mark.long
def test_a_key_is_asked_for_kept_in_the_tab_and_shows_its_owners_jobs_alone(
    browser: Browser, gateway: Program, tmp_path: Path
) -> None:
    environ = SHORT_GRACE | {"CONVEYOR_API_KEYS": "alice-key,bob-key"}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
        client_of(program, key="alice-key") as alice,
        client_of(program, key="bob-key") as bob,
        visiting(browser, program.url.removesuffix("/v1")) as visitor,
    ):
        submit(alice, f"{OK}/", name="Of Alice")
        secret = submit(bob, f"{OK}/secret", name="Of Bob")
        page = visitor.open("", "form.sign-in")
        page.get_by_label("API key").fill("a-guess")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not accept")
        page.get_by_label("API key").fill("alice-key")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Of Alice")).to_be_visible()
        expect(page.get_by_text("Of Bob")).to_have_count(0)
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]

        for tab in ("", "/failures", "/rows", "/runs", "/settings"):
            visitor.open(f"jobs/{secret}{tab}", "[role=alert]")
            assert "secret" not in page.locator("main").inner_text()
            assert "Of Bob" not in page.locator("main").inner_text()

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
        assert not [url for url in visitor.requested if "alice-key" in url]


# Every page and action: `make test-long`.


@pytest.mark.long
@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_every_page_is_accessible_and_fits(
    browser: Browser, root: str, api: httpx.Client, key: str, look: Look
) -> None:
    size, scheme = look
    failed = submit(api, f"{OK}/{'long/' * 30}", f"{GONE}/x", name="With failures " * 6)
    ended(api, failed)
    live = submit(api, SLOW, f"{OK}/1", name="Live")
    submit(api, f"{OK}/", status="open")
    calendar = {"times_of_day": ["09:00"], "cadence": {"weekly": {"days": ["mon"]}}}
    schedule = {"calendar": calendar, "timezone": "Europe/Berlin"}
    scheduled = submit(api, f"{OK}/", type="scheduled", schedule=schedule)
    pages = {
        "": "table.jobs",
        "submit": "textarea",
        f"jobs/{live}": ".funnel",
        f"jobs/{failed}": ".reasons",
        f"jobs/{failed}/failures": ".group",
        f"jobs/{failed}/rows": "table.rows",
        f"jobs/{failed}/runs": ".run",
        f"jobs/{failed}/settings": "text=Add webhook",
        f"jobs/{scheduled}": "text=Next run",
        f"jobs/{scheduled}/settings": "text=Edit schedule",
    }
    with visiting(browser, root, key, size=size, scheme=scheme) as visitor:
        check_pages(visitor, pages)
        page = visitor.open(f"jobs/{failed}/rows", "table.rows")
        page.locator("tbody button").first.click()
        page.wait_for_selector("iframe")
        check(visitor, "a row")
        page.keyboard.press("Escape")
        visitor.open(f"jobs/{scheduled}/settings", "text=Edit schedule")
        page.get_by_role("button", name="Edit schedule").click()
        page.wait_for_selector("dialog form")
        check(visitor, "the form of a schedule")
        assert visitor.complaints == []


@pytest.mark.long
def test_a_live_run_is_paused_resumed_stopped_and_deleted(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(
        api, *(f"https://slow.example/{n}?ms=300" for n in range(2_000)), max_inflight=5
    )
    pause_resume_and_stop(visitor, api, job_id)
    delete(visitor, api, job_id)


@pytest.mark.long
def test_an_open_job_is_closed_rerun_whole_and_one_of_its_runs_is_deleted(
    visitor: Visitor, api: httpx.Client
) -> None:
    close_rerun_and_delete_a_run(visitor, api)


@pytest.mark.long
def test_an_export_is_made_and_downloaded(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, f"{OK}/1", f"{OK}/2")
    ended(api, job_id)
    with zipfile.ZipFile(export(visitor, job_id)) as packed:
        assert len(packed.namelist()) >= 3


@pytest.mark.long
def test_a_run_whose_tasks_the_gateway_puts_off_says_that_it_waits(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, "https://banned.example/")
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    expect(page.get_by_text("No task is in flight")).to_be_visible(timeout=120_000)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped").first).to_be_visible()
    expect(page.get_by_text("No task is in flight")).to_have_count(0)


@pytest.mark.long
def test_a_schedule_is_set_edited_paused_resumed_and_run_by_hand(
    visitor: Visitor, api: httpx.Client
) -> None:
    keep_a_schedule(visitor, api)


@pytest.mark.long
def test_a_webhook_is_added_tested_redelivered_and_removed(
    visitor: Visitor, api: httpx.Client, receiver: Receiver
) -> None:
    job_id = submit(api, f"{OK}/")
    ended(api, job_id)
    use_webhook(visitor, api, receiver, job_id)


CSV = b"sku,link\n" + b"".join(b"%d,https://ok.example/%d\n" % (n, n) for n in range(20))
NDJSON = b"".join(b'{"url": "https://ok.example/%d"}\n' % n for n in range(20))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.csv", CSV),
        ("list.csv.gz", gzip.compress(CSV)),
        ("list.ndjson", NDJSON),
        ("list.ndjson.zst", zstd.compress(NDJSON)),
        ("list.txt", b"https://ok.example/1\n" * 19 + b"no url\n" + b"https://ok.example/2\n"),
    ],
)
def test_a_list_is_uploaded(visitor: Visitor, name: str, content: bytes) -> None:
    upload(visitor, name, content)
    page = visitor.page
    expect(heading(page)).to_contain_text("Completed")
    expect(page.locator(".funnel")).to_contain_text("Successful20")


@pytest.mark.long
def test_a_refused_list_says_which_tasks_are_bad(visitor: Visitor) -> None:
    page = visitor.open("submit", "textarea")
    page.get_by_label("URLs, one a line").fill("https://ok.example/\nnonsense\n")
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert")).to_contain_text("Task 2: Malformed url nonsense")
    visitor.complaints.clear()  # the browser reports the 400 itself


def test_a_search_without_matches_stops_and_offers_to_go_on(visitor: Visitor) -> None:
    asked = list[str]()

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"jobs": [], "next_cursor": "01M7GNPVD0697FEM6F7VYWRK5F"})

    page = visitor.open("", "h1")
    page.route("**/v1/jobs?*name=*", answer)
    page.get_by_label("Search jobs").fill("nowhere")
    older = page.get_by_role("button", name="Search older jobs")
    expect(older).to_be_enabled()
    assert len(asked) == 2
    with page.expect_response("**/v1/jobs?*name=*"):
        older.click()


@pytest.mark.parametrize(("reads", "pause"), [(4, 20_000), (8, 30_000)])
def test_a_filter_that_reads_many_pages_is_repeated_as_much_later(
    visitor: Visitor, api: httpx.Client, reads: int, pause: int
) -> None:
    submit(api, SLOW)
    [live] = api.get("/jobs").json()["jobs"]
    asked = list[str]()

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        jobs = [live] if len(asked) % reads == 1 else []
        cursor = None if len(asked) % reads == 0 else "01M7GNPVD0697FEM6F7VYWRK5F"
        route.fulfill(json={"jobs": jobs, "next_cursor": cursor})

    page = visitor.page
    page.add_init_script(SHORT_PAUSES)
    page.route("**/v1/jobs?*", answer)
    visitor.open("?show=live", "table.jobs")
    until(lambda: page.evaluate("window.pauses.length > 1"))
    assert set(page.evaluate("window.pauses")) == {pause}


def test_older_jobs_that_arrive_after_the_filter_was_changed_are_not_added(
    visitor: Visitor, api: httpx.Client
) -> None:
    submit(api, f"{OK}/")
    [job] = api.get("/jobs").json()["jobs"]
    cursor = "01M7GNPVD0697FEM6F7VYWRK5F"
    held = list[Route]()
    page = visitor.page
    page.route("**/v1/jobs?*", lambda one: one.fulfill(json={"jobs": [job], "next_cursor": cursor}))
    page.route("**/v1/jobs?*cursor=*", lambda route: held.append(route))  # noqa: PLW0108
    visitor.open("", "table.jobs")
    for show in ("All", "Open"):
        page.get_by_role("link", name=show, exact=True).click()
        with page.expect_request("**/v1/jobs?*cursor=*"):
            page.get_by_role("button", name="Show older jobs").click()
    for route, show in zip(held, ("all", "open"), strict=True):
        older = {**job, "job_id": f"0 {show}", "name": f"Older of {show}"}
        route.fulfill(json={"jobs": [older], "next_cursor": None})
    expect(page.get_by_role("link", name="Older of open")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)


@pytest.mark.long
def test_jobs_are_searched_filtered_and_paged(visitor: Visitor, api: httpx.Client) -> None:
    for number in range(55):
        submit(api, f"{OK}/", name=f"Job {number}", metadata={"team": f"team-{number % 2}"})
    page = visitor.open("", "table.jobs")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show older jobs").click()
    expect(rows).to_have_count(55)
    page.get_by_label("Search jobs").fill("Job 7")
    expect(rows).to_have_count(1)
    page.get_by_label("Search jobs").fill("")
    page.get_by_role("link", name="With failures").click()
    expect(page.get_by_text("No job matches")).to_be_visible()


@pytest.mark.long
def test_the_keyboard_is_enough(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, SLOW)
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    pause, dialog = page.get_by_role("button", name="Pause"), page.locator("dialog")
    pause.focus()
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(pause).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    expect(pause).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Space")
    expect(heading(page)).to_contain_text("Paused")


@pytest.mark.long
def test_a_broken_stream_is_resumed(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, *(f"https://slow.example/{n}?ms=200" for n in range(40)), max_inflight=4)
    cut: list[str] = []

    def once(route: Any) -> None:
        if cut:
            route.continue_()
        else:
            cut.append(route.request.url)
            route.fulfill(status=200, content_type="text/event-stream", body=": cut\n\n")

    visitor.page.route("**/events", once)
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    expect(heading(page)).to_contain_text("Completed")
    assert cut


def test_the_page_says_what_a_browser_may_do(root: str) -> None:
    answer = httpx.get(root)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert answer.headers["cache-control"] == "no-cache"
    for asset in re.findall(r'(?:src|href)="(assets/[^"]+)"', answer.text):
        found = httpx.get(f"{root}/{asset}")
        assert (found.status_code, found.headers["cache-control"]) == (200, "no-cache")
    assert httpx.get(f"{root}/assets/..%2f..%2fapp.py").status_code == 404
