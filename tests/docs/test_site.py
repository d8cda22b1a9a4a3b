"""The site of the documentation has every page, loads nothing from elsewhere and can be searched.

It needs no server: the browser reads it from the disk.
"""

import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, expect

from tests.docs import site
from tests.harness.dashboard import PATIENCE, Visitor, visiting

WITHIN = 900.0  # seconds: an index may be slow
# Material draws diagrams in closed shadow roots, which no test can look into.
OPEN_ROOTS = """
    const attach = Element.prototype.attachShadow;
    Element.prototype.attachShadow = function (options) {
        return attach.call(this, {...options, mode: "open"});
    };
"""
LOADED = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="?([^"\s>]+)|<link[^>]*\shref="?([^"\s>]+)')


def _navigation() -> list[str]:
    def pages(entry: object) -> list[str]:
        match entry:
            case str(page):
                return [page]
            case dict():
                return [page for below in entry.values() for page in pages(below)]
            case list():
                return [page for below in entry for page in pages(below)]
        raise TypeError(entry)

    config = site.CONFIG.read_text(encoding="utf-8")
    return pages(yaml.safe_load(config[config.index("nav:") :])["nav"])


def test_the_navigation_has_every_page_once_and_the_index_the_decisions() -> None:
    found = [path.relative_to(site.ROOT).as_posix() for path in site.sources()]
    wanted = [page for page in found if not page.startswith("docs/decisions/")]
    assert sorted(_navigation()) == sorted(wanted)


def test_files_that_pages_link_to_are_in_their_places(tmp_path: Path) -> None:
    site.stage(tmp_path)
    for name in ("README.md", "LICENSE", "docs/grafana/conveyor.json", "deploy/aws/data.yaml"):
        assert (tmp_path / name).is_file()


def test_links_of_pages_lead_to_files_because_a_site_has_no_folders() -> None:
    for page in site.sources():
        assert [place for place in site.linked(page) if not place.is_file()] == [], page


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    venv.create(folder, with_pip=True)
    needed = str(site.CONFIG.with_name("requirements.txt"))
    install = [str(folder / "bin" / "pip"), "install", "--quiet", "-r", needed]
    subprocess.run(install, check=True, timeout=WITHIN)
    command = [sys.executable, "-m", "tests.docs.site", str(folder / "bin" / "mkdocs")]
    done = subprocess.run(
        command, cwd=site.ROOT, capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert done.returncode == 0, done.stderr
    return site.BUILT / "site"


@pytest.fixture
def visitor(built: Path, browser: Browser) -> Iterator[Visitor]:
    """A visitor who finds no fault with the site and is sent nowhere else."""
    with visiting(browser, built.as_uri()) as visitor:
        visitor.page.add_init_script(OPEN_ROOTS)
        yield visitor
        assert [url for url in visitor.requested if not url.startswith(visitor.root)] == []
        assert visitor.complaints == []


@pytest.mark.long
def test_the_site_can_be_built_and_loads_nothing_from_elsewhere(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"SPEC.html", "docs/operations.html", "docs/reference/settings.html"} <= places
    for page in built.rglob("*.html"):
        for parts in LOADED.findall(page.read_text(encoding="utf-8")):
            assert "//" not in "".join(parts), page


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.parametrize(("page", "diagrams"), [("index", 1), ("SPEC", 3), ("ARCHITECTURE", 2)])
def test_diagrams_are_drawn(visitor: Visitor, page: str, diagrams: int) -> None:
    visitor.page.goto(f"{visitor.root}/{page}.html")
    drawn = visitor.page.locator("div.mermaid svg")
    expect(drawn).to_have_count(diagrams, timeout=PATIENCE)
    assert visitor.page.locator("pre.mermaid, .mermaid .error-icon").count() == 0


@pytest.mark.browser
@pytest.mark.long
def test_the_search_finds_pages(visitor: Visitor) -> None:
    visitor.page.goto(f"{visitor.root}/index.html")
    visitor.page.get_by_role("textbox", name="Search").press_sequentially("redrive")
    found = visitor.page.locator(".md-search-result__link").first
    assert str(found.get_attribute("href")).startswith(visitor.root)
