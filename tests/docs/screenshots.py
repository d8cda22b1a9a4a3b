"""Pictures of the dashboard over a real service: `make screenshots` takes them."""

import os
import re
import tempfile
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.conftest import CHROMIUM_FLAGS, FAST_RETRIES, client_of
from tests.e2e.polling import ended
from tests.harness.dashboard import PHONE, visiting
from tests.harness.programs import mock_gateway, service

FOLDER = Path(__file__).parents[2] / "docs" / "images"
CALENDAR = {"times_of_day": ["09:00"], "cadence": {"weekly": {"days": ["mon", "thu"]}}}
SITES = ("https://shop.example/product/", "https://news.example/article/")
KEY = "my-key"


def submitted(api: httpx.Client) -> tuple[str, str]:
    """Submit jobs as people have them; return one that ended with failures and one that runs."""

    def submit(name: str, urls: list[str], **more: object) -> str:
        body = {"name": name, "tasks": [{"url": url} for url in urls], **more}
        job_id: str = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        return job_id

    products = [f"{SITES[0]}{number}" for number in range(470)]
    failing = {"permanent": 18, "captcha": 9, "timedout": 3}
    lost = [f"https://{host}.example/{n}" for host, count in failing.items() for n in range(count)]
    failed = submit("Product pages", products + lost, zenrows_params={"js_render": "true"})
    submit("Articles of last week", [f"{SITES[1]}{number}" for number in range(120)])
    schedule = {"calendar": CALENDAR, "timezone": "Europe/Berlin"}
    submit("Prices of competitors", products[:20], type="scheduled", schedule=schedule)
    submit("Feed of the crawler", [SITES[1]], status="open")
    slow = [f"https://slow.example/search?q={number}&ms=500" for number in range(4_000)]
    for at in range(9, 4_000, 60):
        slow[at] = f"https://permanent.example/{at}"
    ended(api, failed)
    return failed, submit("Search results", slow, max_inflight=25)


def take(browser: Browser, root: str, failed: str, live: str) -> None:
    with visiting(browser, root, KEY, size=(1200, 640)) as visitor:
        page = visitor.open("", "table.jobs")
        measured = page.locator("[data-label=Rate]", has_text=re.compile("[1-9].*/s"))
        measured.first.wait_for()
        page.screenshot(path=FOLDER / "jobs.png")
        visitor.open(f"jobs/{failed}/failures", ".group")
        page.screenshot(path=FOLDER / "failures.png")
    with visiting(browser, root, KEY, size=(1200, 860), scheme="dark") as visitor:
        page = visitor.open(f"jobs/{live}", ".plot canvas")
        page.wait_for_timeout(15_000)  # long enough for a line
        page.screenshot(path=FOLDER / "job.png")
    with visiting(browser, root, KEY, size=PHONE) as visitor:
        visitor.open("", "table.jobs").screenshot(path=FOLDER / "phone.png")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        mock_gateway() as gateway,
        service(data=Path(data), gateway=gateway.url, environ=FAST_RETRIES) as program,
        client_of(program, key=KEY) as api,
        sync_playwright() as playwright,
    ):
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        take(browser, program.url.removesuffix("/v1"), *submitted(api))
        browser.close()


if __name__ == "__main__":
    main()
