"""The page about the client: its snippets run as they stand, against a real service."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor import client
from tests.harness.programs import Program

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs(running: Program, tmp_path: Path, snippet: str) -> None:
    assert "http://127.0.0.1:8080/v1" in snippet
    code = snippet.replace("http://127.0.0.1:8080/v1", running.url)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_page_tells_of_every_call_and_every_error() -> None:
    public = {name for name in dir(client.AsyncConveyor) if not name.startswith("_")}
    assert public == {name for name in dir(client.Conveyor) if not name.startswith("_")}
    errors = {
        name
        for name, kind in vars(client).items()
        if isinstance(kind, type) and issubclass(kind, client.ClientError)
    }
    told = set(re.findall(r"\w+", PAGE))
    assert public | errors <= told
