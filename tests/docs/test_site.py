"""The site of the documentation has every page, loads nothing from elsewhere and can be searched."""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from tests.docs import site

WITHIN = 900.0  # seconds: an index may be slow
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


@pytest.mark.long
def test_the_site_can_be_built_and_searched_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    venv.create(tmp_path, with_pip=True)
    needed = str(site.CONFIG.with_name("requirements.txt"))
    install = [str(tmp_path / "bin" / "pip"), "install", "--quiet", "-r", needed]
    subprocess.run(install, check=True, timeout=WITHIN)
    command = [sys.executable, "-m", "tests.docs.site", str(tmp_path / "bin" / "mkdocs")]
    done = subprocess.run(
        command, cwd=site.ROOT, capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert done.returncode == 0, done.stderr

    built = site.BUILT / "site"
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"SPEC.html", "docs/operations.html", "docs/reference/settings.html"} <= places
    for page in built.rglob("*.html"):
        for parts in LOADED.findall(page.read_text(encoding="utf-8")):
            assert "//" not in "".join(parts), page
