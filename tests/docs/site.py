"""The site of the documentation: `make docs` builds it from the pages as they are.

All pages, the files that they link to and the vendored scripts are copied to one folder in their
places, so that links between them stay as they are. mkdocs then fails on links and anchors that lead
nowhere.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "docs" / "mkdocs.yml"
BUILT = ROOT / "build" / "docs"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def sources() -> list[Path]:
    """Every page."""
    folders = (ROOT / "docs").rglob("*.md")
    named = (ROOT / folder / "README.md" for folder in ("examples", "benchmarks"))
    return sorted([*ROOT.glob("*.md"), *folders, *named])


def stage(pages: Path) -> None:
    """Copy the pages, the files that they link to, and the scripts of the site."""
    for script in (ROOT / "docs" / "vendor").glob("*.js"):
        _copy(script, pages)
    for page in sources():
        _copy(page, pages)
        for place in linked(page):
            if place.is_file() and place.suffix != ".md":
                _copy(place, pages)


def linked(page: Path) -> Iterator[Path]:
    """The files of this repository that a page links to."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in link:
            yield (page.parent / link).resolve()


def _copy(path: Path, pages: Path) -> None:
    place = pages / path.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)


def build(mkdocs: str) -> int:
    shutil.rmtree(BUILT, ignore_errors=True)
    stage(BUILT / "pages")
    # Not --quiet, which would also hide warnings from --strict.
    command = [mkdocs, "build", "--strict", "--config-file", str(CONFIG)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # about the next major version
    return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(build(sys.argv[1]))
