"""Pictures of the dashboard over a real service: `make screenshots` takes them."""

import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.conftest import CHROMIUM_FLAGS, client_of
from tests.e2e.polling import ended
from tests.e2e.test_keys import create
from tests.harness.dashboard import PHONE, Visitor, visiting
from tests.harness.programs import Program, mock_gateway, service

FOLDER = Path(__file__).parents[2] / "docs" / "images"
Scheme = Literal["light", "dark"]
WIDTH = 1200
HEIGHTS = {"jobs": 580, "job": 810, "failures": 790, "rows": 760, "operators": 500}
LOOKS: dict[str, tuple[tuple[int, int], Scheme, int]] = {
    "light": ((WIDTH, 800), "light", 1),
    "dark": ((WIDTH, 800), "dark", 1),
    "phone": (PHONE, "light", 2),
}
FOLLOWED_FOR = 45.0  # seconds: long enough for a line
SHOP, NEWS, SEARCH = "https://shop.example", "https://news.example", "https://slow.search.example"
# The first label tells the mock gateway how to fail.
FAILING = {
    "https://permanent.outlet.example/item": 184,
    "https://captcha.tickets.example/event": 96,
    "https://blocked.market.example/offer": 41,
    "https://timedout.travel.example/hotel": 12,
}
RARE = ("flaky", "permanent", "flaky", "nohost", "flaky", "blocked")
CALENDAR = {"times_of_day": ["09:00"], "cadence": {"weekly": {"days": ["mon", "thu"]}}}


def submit(api: httpx.Client, name: str, urls: list[str], **more: object) -> str:
    body = {"name": name, "tasks": [{"url": url} for url in urls], **more}
    job_id: str = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    return job_id


def submit_all(api: httpx.Client, other: httpx.Client) -> tuple[str, str]:
    """Submit jobs as people have them; return one that ended with failures and one that runs."""
    submit(api, "Feed of the crawler", [f"{NEWS}/{n}" for n in range(40)], status="open")
    articles = submit(api, "Articles of last week", [f"{NEWS}/article/{n}" for n in range(120)])
    schedule = {"calendar": CALENDAR, "timezone": "Europe/Berlin"}
    products = [f"{SHOP}/product/{number}" for number in range(6_000)]
    prices = submit(api, "Prices", products[:20], type="scheduled", schedule=schedule)
    api.post(f"/jobs/{prices}/rerun").raise_for_status()
    lost = [f"{start}/{n}" for start, count in FAILING.items() for n in range(count)]
    for number, url in enumerate(lost):
        products[number * 18] = url
    params = {"js_render": "true"}
    failed = submit(api, "Product pages", products, zenrows_params=params, retries=0)
    for job_id in (articles, prices, failed):
        ended(api, job_id)
    submit(other, "Hotels of the season", _searches(4_000, 900), max_inflight=12)
    return failed, submit(api, "Search results", _searches(20_000, 350), max_inflight=25)


def _searches(count: int, milliseconds: int) -> list[str]:
    """Pages that take longer and less long by turns, and a few that fail."""
    swing = [milliseconds * (1 + 0.6 * math.sin(number / 90)) for number in range(count)]
    urls = [f"{SEARCH}/?q={number}&ms={ms:.0f}" for number, ms in enumerate(swing)]
    for at in range(9, count, 20):
        urls[at] = f"https://{RARE[at // 20 % len(RARE)]}.search.example/?q={at}"
    return urls


@contextmanager
def looking(browser: Browser, root: str, key: str) -> Iterator[dict[str, Visitor]]:
    """A tab in every look."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                visiting(browser, root, key, size=size, scheme=scheme, scale=scale)
            )
            for name, (size, scheme, scale) in LOOKS.items()
        }


def picture(page: Page, folder: Path, name: str, look: str) -> None:
    if look != "phone":
        page.set_viewport_size({"width": WIDTH, "height": HEIGHTS[name]})
    page.screenshot(path=folder / f"{name}-{look}.png", animations="disabled")


def take(
    browser: Browser,
    root: str,
    key: str,
    jobs: tuple[str, str],
    *,
    folder: Path,
    followed_for: float,
) -> None:
    failed, live = jobs
    with looking(browser, root, key) as looks:
        for visitor in looks.values():
            visitor.open(f"jobs/{live}", ".plot canvas")
        looks["light"].page.wait_for_timeout(followed_for * 1000)
        for look, visitor in looks.items():
            picture(visitor.page, folder, "job", look)
            page = visitor.open("", "table.jobs")
            measured = page.locator("[data-label=Rate]", has_text=re.compile("[1-9].*/s"))
            measured.first.wait_for()
            picture(page, folder, "jobs", look)
            page = visitor.open(f"jobs/{failed}/failures", ".group")
            picture(page, folder, "failures", look)
            page = visitor.open(f"jobs/{failed}/rows", "table.rows")
            picture(page, folder, "rows", look)


def take_operators(browser: Browser, root: str, key: str, *, folder: Path) -> None:
    with looking(browser, root, key) as looks:
        for look, visitor in looks.items():
            page = visitor.open("operators", "table.runs")
            page.get_by_role("link", name="Operators").wait_for()
            picture(page, folder, "operators", look)


def take_all(browser: Browser, data: Path, folder: Path, *, followed_for: float) -> None:
    with served(data) as program:
        root = program.url.removesuffix("/v1")

        def key_of(caller: str, *more: str) -> str:
            made: dict[str, Any] = create(data, "--caller", caller, *more)
            return str(made["key"])

        pricing, travel = key_of("pricing"), key_of("travel")
        with client_of(program, key=pricing) as api, client_of(program, key=travel) as other:
            jobs = submit_all(api, other)
            take(browser, root, pricing, jobs, folder=folder, followed_for=followed_for)
            ops = key_of("ops", "--scope", "operator")
            take_operators(browser, root, ops, folder=folder)


@contextmanager
def chromium() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@contextmanager
def served(data: Path) -> Iterator[Program]:
    keys = {"CONVEYOR_AUTH": "keys", "CONVEYOR_GATEWAY_KEY": "the-gateways"}
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=keys) as program,
    ):
        yield program


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as data, chromium() as browser:
        take_all(browser, Path(data), FOLDER, followed_for=FOLLOWED_FOR)


if __name__ == "__main__":
    main()
