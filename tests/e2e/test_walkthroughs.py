"""What readers are told to do, done: the tutorial, the README and the examples, as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.testing.local.ports import free_port
from tests.harness.programs import Program

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".sh"})
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
PATIENCE = 280


def test_the_tutorial_leads_where_it_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").partition("## Start")[2]
    told = walk(text, tmp_path, port=free_port())
    assert "a hundred pages" not in told.stderr
    assert len(list((tmp_path / "tutorial-pages").glob("*.html"))) == 98
    assert re.search(r"retried_tasks\s+2\b", told.stdout)
    assert re.search(r"inherited_tasks\s+98\b", told.stdout)
    assert re.search(r"retried_tasks\s+1\ninherited_tasks\s+99\b", told.stdout)
    recorded = text.partition("tasks  host")[2].partition("```")[0].splitlines()[1:]
    assert len(recorded) == 2
    for line in recorded:
        assert "\t".join(re.split(" {2,}", line.strip())) in told.stdout
    assert re.search(r"total\s+2000\ncompleted\s+2000\nsuccessful\s+2000", told.stdout)
    assert re.search(r"total\s+500\n.*ingest_errors\s+2\n", told.stdout, re.DOTALL)
    assert '"line":502,' in told.stdout
    assert "https://ok.example/9" in told.stdout
    assert "completed 2 of 2" in told.stdout
    [removed] = re.findall(r"`rm -r (.*?)`", text)
    assert {path.name for path in tmp_path.iterdir()} == set(removed.split())


def test_the_readme_leads_to_a_hundred_saved_pages(running: Program, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A hundred pages")[2]
    steps, *_ = text.partition("## Guarantees")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    port = int(running.url.rsplit(":", 1)[1].split("/")[0])
    told = walk(steps, tmp_path, port=port)
    assert len(list((tmp_path / "pages").glob("*.html"))) == 98
    assert "completed 1 of 2" in told.stdout
    assert '"retried_tasks":1' in told.stdout
    *_, last = re.findall(r'"url":"https://premium.example/3","status":"(\w+)"', told.stdout)
    assert last == "successful"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(running: Program, tmp_path: Path, example: Path) -> None:
    shell = ["bash"] if example.suffix == ".sh" else [sys.executable, "-W", "error"]
    done = run([*shell, str(example)], tmp_path, environ={"CONVEYOR_URL": running.url})
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_example_is_listed() -> None:
    listed = re.findall(r"\]\(([\w.]+)\)", (ROOT / "examples" / "README.md").read_text())
    assert sorted(listed) == [path.name for path in EXAMPLES]


def walk(text: str, folder: Path, *, port: int) -> subprocess.CompletedProcess[str]:
    """Run every snippet of a text in one shell, in order; only the port is another."""
    script = ["set -eu"]
    for language, code in BLOCK.findall(text):
        if language == "sh":
            script += [] if code.startswith("make ") else [code]
        else:
            script.append(f"python - <<'SNIPPET'\n{code}SNIPPET")
    whole = "\n".join(script).replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    environ = {
        "CONVEYOR_PORT": str(port),
        "CONVEYOR_URL": f"http://127.0.0.1:{port}/v1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    done = run(
        ["bash", "-c", f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{whole}"],
        folder,
        environ,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def run(
    command: list[str], folder: Path, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CONVEYOR_")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**own, "HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
