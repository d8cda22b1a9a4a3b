"""Which kinds of fault show which planted bugs: `python -m tests.planted.kinds [bug ...]`.

Histories of two services meet one kind of fault at a time. A bug that all kinds together do not
show, or that shows without any, is not tried with each. A line names the bug, the kind, the seed
that showed it, and the check that failed. Bugs that no history shows are listed with their suites.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tests.planted.bugs import BUGS
from tests.planted.plant import VARIABLE

if TYPE_CHECKING:
    from tests.simulation.shared import Conditions

ROOT = Path(__file__).parents[2]
# What these histories do not use: other engines, and the loops of the dispatcher with its permits.
UNUSED = (
    "conveyor.adapters.aws",
    "conveyor.adapters.memory.coordination",
    "conveyor.adapters.postgres",
    "conveyor.adapters.sqlite",
    "conveyor.app.storage",
    "conveyor.steps.dispatch",
)
STORE = ("slow", "throttled", "lost", "lagging")
QUEUE = ("doubled", "late", "empty", "undead", "lost")


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.planted.kinds", description=__doc__)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--kind", help="make its histories in this process, with PLANTED_BUG")
    parser.add_argument("bugs", nargs="*")
    given = parser.parse_args()
    if given.kind:
        _write(json.dumps(_shown_by(given.kind, given.histories)))
        return
    for bug in given.bugs or ["", *BUGS]:
        _report(bug, given.histories)


def _report(bug: str, histories: int) -> None:
    """Without a bug, each kind must show nothing."""
    if bug and BUGS[bug].module.startswith(UNUSED):
        _write(f"{bug:34} {'not used':18} {'-':>5}  {BUGS[bug].suite}")
        return
    kinds = ["all", "none"]
    for kind in kinds:
        seed, check = _ask(bug, kind, histories)
        is_hidden = kind == "all" and bug and not seed
        _write(
            f"{bug or '(no bug)':34} {kind:18} {seed or '-':>5}  "
            f"{BUGS[bug].suite if is_hidden else check}"
        )
        if is_hidden:
            return
        if kind == "none" and not seed:
            kinds += [one for one in _conditions() if one not in kinds]


def _ask(bug: str, kind: str, histories: int) -> tuple[int | None, str]:
    """A process of its own: the bug must be planted before its module is imported."""
    command = [sys.executable, "-m", "tests.planted.kinds", "--kind", kind]
    done = subprocess.run(
        [*command, "--histories", str(histories)],
        cwd=ROOT,
        env={**os.environ, VARIABLE: bug},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seed, check = json.loads(done.stdout.splitlines()[-1])
    return seed, check


def _conditions() -> dict[str, "Conditions"]:
    from conveyor.adapters.memory.queues import Habits  # noqa: PLC0415 - after the bug is planted
    from conveyor.testing.shared.faults import ROUGH, StoreFaults  # noqa: PLC0415
    from tests.simulation.shared import AHEAD, ALL_FAULTS, LOSSY, Conditions  # noqa: PLC0415

    return {
        "all": ALL_FAULTS,
        "none": Conditions(),
        **{
            f"calls {name}": Conditions(faults=StoreFaults(**{name: getattr(ROUGH, name)}))
            for name in STORE
        },
        **{
            f"messages {name}": Conditions(habits=Habits(**{name: getattr(LOSSY, name)}))
            for name in QUEUE
        },
        "clocks": Conditions(ahead=AHEAD),
        "deaths": Conditions(deaths=True),
        "races": Conditions(races=True),
    }


def _shown_by(kind: str, histories: int) -> tuple[int | None, str]:
    """The seed of the history that fails, and the first line of its failure."""
    import structlog  # noqa: PLC0415 - after the bug is planted

    made = import_module("tests.simulation.test_shared_histories")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        try:
            made.make_shared_histories(
                Path(folder), histories, services=2, first_seed=1, conditions=_conditions()[kind]
            )
        except Exception as error:  # noqa: BLE001 - whatever fails shows the bug
            seed = int(error.__notes__[-1].partition("first_seed=")[2].rstrip("`."))
            return seed, f"{type(error).__name__}: {str(error)[:100]}".replace("\n", " ")
    return None, ""


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
