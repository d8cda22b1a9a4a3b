"""The forms of the dashboard, filled in as people do: lists of spreadsheets, retries, schedules."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.conftest import SHORT_GRACE
from tests.e2e.dashboard_actions import OK, heading, submit
from tests.e2e.polling import ended, until
from tests.harness.dashboard import PATIENCE, Visitor, visiting
from tests.harness.programs import Program, service

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

DROP = """(target, [name, text]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  target.dispatchEvent(new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer}));
}"""


def choose(page: Page, name: str, content: bytes) -> None:
    page.get_by_role("button", name="Upload a list").click()
    files: Any = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.get_by_label("List of tasks").set_input_files(files)


@pytest.mark.parametrize("kind", ["paste", "file"])
def test_a_submit_whose_answer_is_lost_is_repeated_as_the_same_job(
    visitor: Visitor, api: httpx.Client, kind: str, request: pytest.FixtureRequest
) -> None:
    page, name = visitor.page, f"Repeated {request.node.name}"
    sent = list[tuple[str | None, str]]()

    def lose_the_first(route: Route) -> None:
        asked = route.request
        sent.append((asked.post_data, asked.headers["idempotency-key"]))
        if len(sent) > 1:
            return route.continue_()
        route.fetch()
        return route.abort("connectionreset")

    visitor.open("submit", "textarea")
    page.route(lambda url: url.endswith("/v1/jobs"), lose_the_first)
    if kind == "file":
        choose(page, "list.txt", f"{OK}/1\n{OK}/2\n".encode())
    else:
        page.get_by_label("URLs, one a line").fill(f"{OK}/1\n{OK}/2")
    page.get_by_role("textbox", name="Name", exact=True).fill(name)
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Submit job").click()
    expect(heading(page)).to_contain_text("Completed")
    assert sent[0] == sent[1]
    assert len([url for url in visitor.requested if url.endswith("/v1/job_inputs")]) == (
        kind == "file"
    )
    assert len(api.get("/jobs", params={"name": name}).json()["jobs"]) == 1


def test_a_submit_that_is_changed_after_its_answer_was_lost_is_another_one(
    visitor: Visitor,
) -> None:
    page = visitor.open("submit", "textarea")
    keys = list[str]()

    def refuse(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        route.abort("connectionreset")

    page.route(lambda url: url.endswith("/v1/jobs"), refuse)
    for turn, urls in enumerate((f"{OK}/1", f"{OK}/1", f"{OK}/2"), 1):
        page.get_by_label("URLs, one a line").fill(urls)
        page.get_by_role("button", name="Submit job").click()
        until(lambda: page.get_by_role("button", name="Submit job").is_enabled())
        until(lambda: len(keys) == turn)  # noqa: B023
        expect(page.get_by_role("alert")).to_be_visible()
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("name", "delimiter", "found"),
    [
        ("list.csv", ";", ";"),
        ("list.tsv", "\t", "\t"),
        ("list.csv", ",", ","),
        ("list.csv", "|", "|"),
    ],
)
def test_the_delimiter_of_a_dropped_list_is_detected(
    visitor: Visitor, name: str, delimiter: str, found: str
) -> None:
    rows = [["sku", '"price, net; gross"', "link"]]
    rows += [[str(n), '"1,50; 2"', f"{OK}/{n}"] for n in range(3)]
    text = "\r\n".join(delimiter.join(row) for row in rows)
    page = visitor.open("submit", "textarea")
    page.get_by_role("button", name="Upload a list").click()
    page.locator("label.drop").evaluate(DROP, [name, text])
    expect(page.get_by_label("Delimiter")).to_have_value(found)
    expect(page.get_by_label("Column of the URL")).to_have_value("link")
    expect(page.get_by_text("3 columns found")).to_be_visible()
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".funnel")).to_contain_text("Successful3")
    assert visitor.complaints == []


def test_a_list_is_uploaded_from_a_page_at_another_name_than_the_public_one(
    browser: Browser, gateway: Program, tmp_path: Path
) -> None:
    named = {"CONVEYOR_PUBLIC_URL": "https://conveyor.example.com/behind"}
    environ = SHORT_GRACE | named | {"CONVEYOR_API_KEYS": "a-key"}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
        visiting(browser, program.url.removesuffix("/v1"), "a-key") as visitor,
    ):
        page = visitor.open("submit", "textarea")
        choose(page, "list.txt", f"{OK}/1\n{OK}/2\n".encode())
        page.get_by_role("button", name="Submit job").click()
        expect(page.locator(".funnel")).to_contain_text("Successful2")
        assert visitor.complaints == []


def test_the_delimiter_of_a_list_can_be_chosen(visitor: Visitor) -> None:
    page = visitor.open("submit", "textarea")
    choose(page, "list.csv", b"a,b|url|c,d\n1,2|https://ok.example/|3,4\n")
    expect(page.get_by_label("Delimiter")).to_have_value(",")
    page.get_by_label("Delimiter").select_option("Vertical bar")
    expect(page.get_by_label("Column of the URL")).to_have_value("url")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".funnel")).to_contain_text("Successful1")
    assert visitor.complaints == []


@pytest.mark.parametrize("at", ["2030-05-06T07:08:09", "2030-05-06T07:08:09.123456"])
def test_an_edited_schedule_keeps_the_seconds_of_its_time(
    visitor: Visitor, api: httpx.Client, at: str
) -> None:
    schedule = {"at": at, "timezone": "Europe/Berlin"}
    job_id = submit(api, f"{OK}/", type="scheduled", schedule=schedule)
    page = visitor.open(f"jobs/{job_id}/settings", "text=Edit schedule")
    page.get_by_role("button", name="Edit schedule").click()
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Asia/Tokyo")).to_be_visible()
    changed = api.get(f"/jobs/{job_id}").json()["schedule"]
    assert changed == {"at": at, "timezone": "Asia/Tokyo"}
    page.get_by_role("button", name="Edit schedule").click()
    page.get_by_label("Local time").fill("2031-01-01T00:00:30")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("2031-01-01 00:00:30")).to_be_visible()
    assert visitor.complaints == []


def test_an_export_is_started_by_its_button_once_and_found_again(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, f"{OK}/1", f"{OK}/2")
    ended(api, job_id)
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    started = list[str]()
    page.on("request", lambda sent: started.append(sent.url) if sent.method == "POST" else None)

    def open_dialog() -> None:
        page.get_by_role("button", name="Export", exact=True).first.click()

    dialog = page.get_by_role("dialog")
    open_dialog()
    expect(dialog).to_contain_text("one zip file")
    assert started == []
    dialog.get_by_role("button", name="Export", exact=True).click()
    expect(dialog.get_by_role("link", name="Download")).to_be_visible()
    file = dialog.get_by_role("link", name="Download").get_attribute("href")
    page.keyboard.press("Escape")
    open_dialog()
    expect(dialog.get_by_role("link", name="Download")).to_be_visible()
    assert len(started) == 1
    again = dialog.get_by_role("link", name="Download").get_attribute("href")
    assert [str(url).partition("?")[0] for url in (again, file)] == [
        str(file).partition("?")[0]
    ] * 2
    assert visitor.complaints == []


def test_an_empty_value_of_a_rerun_removes_the_parameter(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, f"{OK}/", zenrows_params={"mode": "auto"})
    ended(api, job_id)
    page = visitor.open(f"jobs/{job_id}", ".funnel")
    page.get_by_role("button", name="Rerun").click()
    page.get_by_role("button", name="Add parameter").click()
    page.get_by_label("Parameter", exact=True).fill("mode")
    # No example there: it would be taken for the value that is sent.
    expect(page.get_by_label("Value")).to_have_attribute("placeholder", "removed")
    with page.expect_request("**/rerun") as asked:
        page.get_by_role("dialog").get_by_role("button", name="Rerun").click()
    sent = asked.value.post_data_json
    assert sent
    assert sent["zenrows_params"] == {"mode": None}
    expect(page.get_by_text("Run 2 has begun")).to_be_visible()


def test_a_job_says_what_began_its_latest_run(visitor: Visitor, api: httpx.Client) -> None:
    rerun = submit(api, f"{OK}/", name="Old prices")
    ended(api, rerun)
    api.post(f"/jobs/{rerun}/rerun").raise_for_status()
    rate = {"rate": {"every": 9, "unit": "day"}}
    scheduled = submit(api, f"{OK}/", name="By hand", type="scheduled", schedule=rate)
    api.post(f"/jobs/{scheduled}/rerun").raise_for_status()
    submit(api, f"{OK}/", name="In parts", status="open")
    page = visitor.open("", "table.jobs")
    expect(page.get_by_role("row", name="Old prices")).to_contain_text("run 2, rerun")
    expect(page.get_by_role("row", name="By hand")).to_contain_text("last run by hand")
    expect(page.get_by_role("row", name="In parts")).to_contain_text("submitted in parts")
