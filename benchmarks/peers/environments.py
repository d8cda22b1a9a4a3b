"""An environment for each peer, with pinned versions: none of them is a dependency of ours."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".venv-peers"
INSTALLS_WITHIN = 600.0  # seconds


class NotInstalled(Exception):
    pass


def environment(name: str, pins: Sequence[str]) -> Path:
    """The bin folder of an environment that has what is pinned; made when there is none yet."""
    folder = ROOT / name
    stamp, wanted = folder / "pins", "\n".join(pins)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {' '.join(pins)} ...", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", *pins])
        stamp.write_text(wanted)
    return folder / "bin"


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALLS_WITHIN)
    except subprocess.CalledProcessError as failed:
        raise NotInstalled(reason(failed.stderr)) from failed
    except subprocess.TimeoutExpired as late:
        raise NotInstalled(f"not done after {INSTALLS_WITHIN:.0f} s") from late


def reason(told: str) -> str:
    """Of what pip says when it fails, the line that says why: its last error."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no reason given"])[-1]
