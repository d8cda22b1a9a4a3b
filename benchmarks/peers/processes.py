"""Programs that are started, charged for their CPU time with all they start, and ended."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
ENDS_WITHIN = 10.0  # seconds


class Tree:
    """A process and its descendants."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def cpu(self) -> float:
        """CPU seconds used so far, those of children that were waited for included."""
        return sum(sum(map(int, stat[11:15])) for stat in self._members().values()) / TICKS

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        """Ask the first process to stop, and kill what is still there after a while."""
        members = self._members()
        self.process.terminate()
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, stat in members.items():
            if (now := _stat(pid)) and now[19] == stat[19]:  # begun at the same time: not another
                os.kill(pid, signal.SIGKILL)

    def _members(self) -> dict[int, list[str]]:
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        stats = {pid: stat for pid in numbers if (stat := _stat(pid))}
        members = {self.process.pid}
        grown = 0
        while grown != len(members):
            grown = len(members)
            members |= {pid for pid, stat in stats.items() if int(stat[1]) in members}
        return {pid: stats[pid] for pid in members if pid in stats}


@contextmanager
def running(
    command: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    user: str | None = None,
) -> Iterator[Tree]:
    log = folder / f"{Path(command[0]).name}-{time.time_ns()}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **(environ or {})},
            user=user,
        )
    tree = Tree(process, log)
    try:
        yield tree
    finally:
        tree.end()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat that follow the name; none when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []
