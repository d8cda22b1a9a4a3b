"""The rows of a run as the dashboard filters them, and the way there from a group of failures."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Route, expect

from tests.e2e.dashboard_actions import OK, check, submit
from tests.e2e.polling import ended
from tests.harness.dashboard import PATIENCE, Visitor

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

FILTER = {"status": ["failed"], "host": ["permanent.example"], "reason": ["bad_target"]}


@pytest.fixture
def visitor(visitor: Visitor) -> Iterator[Visitor]:
    yield visitor
    assert visitor.complaints == []


class Sparse:
    """Answers for the service: 4 rows on every third page, and never a last page."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []

    def answer(self, route: Route) -> None:
        self.asked.append(parse_qs(urlsplit(route.request.url).query))
        turn = len(self.asked)
        rows = [row(turn * 10 + n) for n in range(4)] if turn % 3 == 0 else []
        route.fulfill(json={"results": rows, "next_cursor": f"after-{turn}"})


def row(number: int) -> dict[str, Any]:
    url = f"https://permanent.example/{number}"
    return {"task_id": f"t{number}", "run_id": "r", "url": url, "status": "failed"}


def test_a_group_of_failures_leads_to_its_rows(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, f"{OK}/", "https://permanent.example/1", retries=0)
    ended(api, job_id)
    [group] = api.get(f"/jobs/{job_id}/failures").json()["groups"]
    page = visitor.open(f"jobs/{job_id}/failures", ".group")
    with page.expect_request("**/results?*") as asked:
        page.get_by_role("article").get_by_role("link", name="Rows").click()
    sent = parse_qs(urlsplit(asked.value.url).query)
    wanted = {name: [group[name]] for name in ("host", "reason", "code")}
    assert {**wanted, "status": ["failed"]}.items() <= sent.items()
    expect(page.locator("tbody tr")).to_have_count(1)
    for name, [value] in wanted.items():
        expect(page.locator(".tags")).to_contain_text(f"{name.title()}: {value}")
    check(visitor, "filtered rows")
    with page.expect_request("**/results?*") as asked:
        page.get_by_role("link", name="Remove the filter Code").click()
    assert "code=" not in asked.value.url
    expect(page.locator(".tags .tag")).to_have_count(2)


def test_rows_are_looked_for_page_by_page_and_further_on_request(
    visitor: Visitor, api: httpx.Client
) -> None:
    job_id = submit(api, f"{OK}/")
    ended(api, job_id)
    service = Sparse()
    visitor.page.route("**/results?*", service.answer)
    path = f"jobs/{job_id}/rows?status=failed&host=permanent.example&reason=bad_target"
    page = visitor.open(path, "table.rows")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(12)
    assert all(FILTER.items() <= one.items() for one in service.asked)
    assert [one["limit"] for one in service.asked[2:5]] == [["50"], ["46"], ["46"]]
    assert [one.get("cursor") for one in service.asked[:2]] == [None, ["after-1"]]
    assert len(service.asked) == 10
    page.get_by_role("button", name="Search on").click()
    expect(rows.first).to_contain_text("/120")
    assert (len(service.asked), service.asked[10]["cursor"]) == (20, ["after-10"])


def test_the_rows_of_a_host_are_asked_for_by_its_name(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, f"{OK}/")
    ended(api, job_id)
    page = visitor.open(f"jobs/{job_id}/rows?status=successful", "table.rows")
    page.get_by_label("Only rows of the host").fill(" OK.example ")
    with page.expect_request("**/results?*") as asked:
        page.keyboard.press("Enter")
    sent = parse_qs(urlsplit(asked.value.url).query)
    assert (sent["host"], sent["status"]) == (["ok.example"], ["successful"])
    expect(page.locator(".tags")).to_contain_text("Host: ok.example")


def test_the_rows_of_a_reason_and_a_code_are_asked_for(visitor: Visitor, api: httpx.Client) -> None:
    job_id = submit(api, f"{OK}/", "https://permanent.example/1", retries=0)
    ended(api, job_id)
    page = visitor.open(f"jobs/{job_id}/rows?host=permanent.example", "table.rows")
    page.get_by_role("combobox", name="Reason").select_option("Bad target")
    page.get_by_role("textbox", name="Code").fill(" RESP002 ")  # as copied
    with page.expect_request("**/results?*") as asked:
        page.get_by_role("button", name="Filter").click()
    sent = parse_qs(urlsplit(asked.value.url).query)
    wanted = {"host": ["permanent.example"], "reason": ["bad_target"], "code": ["RESP002"]}
    assert wanted.items() <= sent.items()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Remove the filter Reason").click()
    expect(page.get_by_role("combobox", name="Reason")).to_have_value("")
    expect(page.get_by_role("textbox", name="Code")).to_have_value("RESP002")
