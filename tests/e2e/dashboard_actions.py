"""What people do at the dashboard, each action as a whole, on jobs of any size."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.e2e.polling import ended, until
from tests.e2e.receiver import Receiver
from tests.harness.dashboard import DESKTOP, PHONE, Visitor

Scheme = Literal["light", "dark"]
Look = tuple[tuple[int, int], Scheme]

LOOKS: list[Look] = [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]
DRAINED_WITHIN = 3_600.0  # seconds; for 100,000 rows a quiet machine takes about a minute
OK = "https://ok.example"
EVIL = "<img src=x onerror=alert(1)>"


def submit(api: httpx.Client, *urls: str, **fields: Any) -> str:
    body = {"tasks": [{"url": url} for url in urls], **fields}
    job_id: str = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    return job_id


def latest_run(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run


def heading(page: Page) -> Locator:
    return page.get_by_role("heading", level=1)


def check_pages(visitor: Visitor, pages: Mapping[str, str]) -> None:
    """Open each page and wait for what it must show; it must be accessible and fit the window."""
    for path, wait_for in pages.items():
        visitor.open(path, wait_for)
        check(visitor, path)


def check(visitor: Visitor, what: str) -> None:
    assert (what, visitor.findings(), visitor.overflow) == (what, [], 0)


# New jobs


def paste(visitor: Visitor, urls: list[str], name: str) -> str:
    page = visitor.open("submit", "textarea")
    page.get_by_label("URLs, one a line").fill("\n".join(urls))
    page.get_by_role("textbox", name="Name", exact=True).fill(name)
    page.get_by_role("button", name="Submit job").click()
    return _submitted(page)


def upload(visitor: Visitor, name: str, content: bytes, *, max_inflight: int = 0) -> str:
    page = visitor.open("submit", "textarea")
    page.get_by_role("button", name="Upload a list").click()
    files: Any = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.get_by_label("List of tasks").set_input_files(files)
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_have_value(name)
    if max_inflight:
        page.get_by_text("More settings").click()
        page.get_by_label("Tasks at a time").fill(str(max_inflight))
    page.get_by_role("button", name="Submit job").click()
    return _submitted(page)


def _submitted(page: Page) -> str:
    """The job whose page is open."""
    page.wait_for_selector(".facts")
    [job_id] = re.findall(r"#/jobs/(\w+)$", page.url)
    return str(job_id)


def keep_a_schedule(visitor: Visitor, api: httpx.Client) -> str:
    """Set a schedule, edit it in each form, pause and resume it, and run its job by hand."""
    page = visitor.open("submit", "textarea")
    page.get_by_label("URLs, one a line").fill(f"{OK}/")
    page.get_by_text("More settings").click()
    page.get_by_label("Run by a schedule").check()
    page.get_by_label("Every").fill("3")
    page.get_by_role("button", name="Schedule job").click()
    expect(page.get_by_text("Every 3 days").first).to_be_visible()
    job_id = _submitted(page)

    visitor.open(f"jobs/{job_id}/settings", "text=Edit schedule")
    _edit_schedule(page, "cron")
    page.get_by_label("Cron line").fill("30 6 * * 1-5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("By cron: 30 6 * * 1-5")).to_be_visible()
    _edit_schedule(page, "calendar")
    page.get_by_label("Times of day").fill("06:00, 18:00")
    page.locator(".field", has_text=re.compile("^Days")).locator("select").select_option("weekly")
    page.get_by_label("Fri").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("On Mon, Fri at 06:00, 18:00")).to_be_visible()
    visitor.confirm("Pause schedule", "Pause")
    until(lambda: api.get(f"/jobs/{job_id}").json()["schedule_state"] == "paused")
    visitor.confirm("Resume schedule", "Resume")
    job = until(lambda: _active(api, job_id))
    assert job["schedule"]["calendar"]["cadence"] == {"weekly": {"days": ["mon", "fri"]}}
    visitor.confirm("Run now")
    expect(heading(page)).to_contain_text("Completed")
    visitor.open("?show=scheduled", "table.jobs")
    expect(page.locator("tbody tr").first).to_contain_text("next in")
    return job_id


def _edit_schedule(page: Page, kind: str) -> None:
    page.get_by_role("button", name="Edit schedule").click()
    page.locator(".field", has_text=re.compile("^Runs")).locator("select").select_option(kind)


def _active(api: httpx.Client, job_id: str) -> dict[str, Any] | None:
    job: dict[str, Any] = api.get(f"/jobs/{job_id}").json()
    return job if job["schedule_state"] == "active" else None


# Rows and failures


def read_row(visitor: Visitor, row: Locator, source: str) -> None:
    """Open a row: its attempts, its page in a frame that can do nothing, and the page's source."""
    page = visitor.page
    row.get_by_role("button").click()
    panel = page.get_by_role("dialog")
    expect(panel.locator(".timeline")).to_contain_text("Scraped")
    frame = panel.locator("iframe")
    expect(frame).to_have_attribute("sandbox", "")
    expect(frame).to_have_attribute("src", re.compile("^blob:"))
    expect(panel.frame_locator("iframe").locator("body")).to_contain_text("queue")
    check(visitor, "a row")
    panel.get_by_role("button", name="Source").click()
    expect(panel.locator("pre")).to_contain_text(source)
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)


def rerun_group(visitor: Visitor, group: Locator) -> None:
    page = visitor.page
    group.get_by_role("button", name="Rerun this group").click()
    page.get_by_role("button", name="Add parameter").click()
    page.get_by_label("Parameter", exact=True).fill("premium_proxy")
    page.get_by_label("Value").fill("true")
    page.get_by_role("dialog").get_by_role("button", name="Rerun").click()
    expect(page.get_by_text(re.compile("Run [0-9]+ has begun"))).to_be_visible()


# Actions on a job


def pause_resume_and_stop(visitor: Visitor, api: httpx.Client, job_id: str) -> None:
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    expect(page.locator(".plot canvas")).to_be_visible()
    visitor.confirm("Pause")
    expect(heading(page)).to_contain_text("Paused")
    assert latest_run(api, job_id)["pause_state"] == "paused"
    visitor.confirm("Resume")
    expect(heading(page)).to_contain_text("Running")
    visitor.confirm("Stop")
    expect(heading(page)).to_contain_text("Stopped")
    page.get_by_role("button", name="Rerun", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("Unfinished tasks")
    page.keyboard.press("Escape")


def delete(visitor: Visitor, api: httpx.Client, job_id: str) -> None:
    page = visitor.open(f"jobs/{job_id}", ".facts")
    visitor.confirm("Delete")
    expect(heading(page)).to_have_text("Jobs")
    assert api.get(f"/jobs/{job_id}").status_code == 404


def close_rerun_and_delete_a_run(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, f"{OK}/1", f"{OK}/2", status="open")
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    expect(heading(page)).to_contain_text("Waiting for tasks")
    visitor.confirm("Close", "Close job")
    expect(heading(page)).to_contain_text("Completed")
    visitor.confirm("Rerun")
    until(lambda: latest_run(api, job_id)["run_sequence"] == 2)
    ended(api, job_id)
    visitor.open(f"jobs/{job_id}/runs", ".run")
    expect(page.locator(".run")).to_have_count(2)
    page.locator(".run").last.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".run")).to_have_count(1)


def export(visitor: Visitor, job_id: str) -> Path:
    """Export the latest run; return the file that was downloaded."""
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    page.get_by_role("button", name="Export").click()
    page.get_by_role("dialog").get_by_role("button", name="Export").click()
    link = page.get_by_role("link", name="Download")
    link.wait_for(timeout=DRAINED_WITHIN * 1000)
    with page.expect_download() as started:
        link.click()
    page.keyboard.press("Escape")
    return started.value.path()


def use_webhook(visitor: Visitor, api: httpx.Client, receiver: Receiver, job_id: str) -> None:
    """Add a webhook to an ended job, test it, see an event delivered twice, and remove it."""
    path = f"/dashboard-{len(receiver.told)}"
    page = visitor.open(f"jobs/{job_id}/settings", "text=Add webhook")
    page.get_by_role("button", name="Add webhook").click()
    page.get_by_label("URL").fill(receiver.url("/elsewhere"))
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Edit webhook").click()
    page.get_by_label("URL").fill(receiver.url(path))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text(receiver.url(path))).to_be_visible()
    visitor.confirm("Send test event", "Send")
    expect(page.get_by_text("accepted the test event")).to_be_visible()
    assert len(receiver.told_of(path)) == 1

    visitor.confirm("Rerun")
    until(lambda: len(receiver.told_of(path)) == 2, within=DRAINED_WITHIN)
    visitor.open(f"jobs/{job_id}/settings", ".deliveries")
    check(visitor, "deliveries")
    page.get_by_role("button", name="Deliver again").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Deliver again").click()
    until(lambda: len(receiver.told_of(path)) == 3)
    visitor.confirm("Remove")
    expect(page.get_by_role("button", name="Add webhook")).to_be_visible()
    assert api.get(f"/jobs/{job_id}/webhook").status_code == 404


# Operators


def operate(visitor: Visitor, action: str, name: str, caller: str) -> None:
    """Pause, resume or stop the run of a caller, found by the beginning of its job's name."""
    visitor.page.get_by_role("button", name=f"{action} {name}").click()
    dialog = visitor.page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"of {caller}")
    dialog.get_by_role("button", name=action, exact=True).click()
    dialog.wait_for(state="detached")


def a_dead_letter() -> dict[str, Any]:
    return {
        "message_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "kind": "purge",
        "payload": {"job_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "caller": "ann"},
        "reason": f"bug: {EVIL} " + "long " * 40,
        "dead_lettered_at": "2026-11-18T12:00:00Z",
    }


def redrive(visitor: Visitor) -> None:
    """Redrive a dead letter that the page is told of.

    The answers are made up, because no step of the embedded engine gives a message up in a test.
    """
    redriven: list[str] = []

    def answer(route: Any) -> None:
        if route.request.method == "POST":
            redriven.append(route.request.url)
            route.fulfill(status=202)
        else:
            found = [] if redriven else [a_dead_letter()]
            route.fulfill(json={"dead_letters": found, "next_cursor": None})

    visitor.page.route("**/operator/dead_letters**", answer)
    page = visitor.open("operators/dead-letters", ".letter")
    expect(page.get_by_role("article")).to_contain_text(EVIL)
    check(visitor, "dead letters")
    page.get_by_role("button", name="Redrive 01ARZ3").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("No dead letters")).to_be_visible()
    assert [url.partition("/v1")[2] for url in redriven] == [
        "/operator/dead_letters/01ARZ3NDEKTSV4RRFFQ69G5FAV/redrive"
    ]
    visitor.page.unroute("**/operator/dead_letters**")
