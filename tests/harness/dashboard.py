"""A person at the dashboard: a page of a real browser, with what it complained of on record."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page

AXE = Path(__file__).parents[1] / "e2e" / "vendor" / "axe.js"
PATIENCE = 200_000  # milliseconds; a quiet machine takes a hundredth
DESKTOP = (1200, 800)
PHONE = (375, 720)
SEVERE = {"serious", "critical"}


class Visitor:
    def __init__(self, page: Page, root: str) -> None:
        self.page = page
        self.root = root
        self.complaints: list[str] = []
        self.requested: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requested.append(request.url))

    def open(self, path: str, wait_for: str) -> Page:
        self.page.goto(f"{self.root}/#/{path}")
        self.page.wait_for_selector(wait_for)
        return self.page

    def confirm(self, button: str, action: str | None = None) -> None:
        """Click a button, then the one of its dialog, and wait until the dialog is gone."""
        self.page.get_by_role("button", name=button, exact=True).click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name=action or button, exact=True).click()
        dialog.wait_for(state="detached")

    def findings(self) -> list[str]:
        """What axe-core finds on the page that keeps people from using it."""
        # Evaluated, not added as a script: the page's policy would refuse that.
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        before = len(self.complaints)
        report: dict[str, Any] = self.page.evaluate("axe.run({iframes: false})")
        del self.complaints[before:]  # axe tries inline styles, which the policy refuses
        return [
            f"{one['id']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
            for one in report["violations"]
            if one["impact"] in SEVERE
        ]

    @property
    def left(self) -> list[str]:
        """The requests that went elsewhere than to the service."""
        sent = [url for url in self.requested if url.startswith(("http", "ws"))]
        return [url for url in sent if not url.startswith(f"{self.root}/")]

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        sizes = "document.documentElement.scrollWidth - window.innerWidth"
        return max(int(self.page.evaluate(sizes)), 0)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)


@contextmanager
def visiting(
    browser: Browser,
    root: str,
    key: str | None = None,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: Literal["light", "dark"] = "light",
    scale: int = 1,
) -> Iterator[Visitor]:
    """Open a tab, signed in with a key if one is given."""
    viewport: Any = {"width": size[0], "height": size[1]}
    context = browser.new_context(
        viewport=viewport,
        device_scale_factor=scale,
        color_scheme=scheme,
        reduced_motion="reduce",
        timezone_id="Europe/Berlin",
    )
    if key:
        stored = f"sessionStorage.setItem('conveyor-key', {json.dumps(key)})"
        context.add_init_script(f"if (self === top) {stored}")
    try:
        yield Visitor(context.new_page(), root)
    finally:
        context.close()
