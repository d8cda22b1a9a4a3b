"""One round after another: the script, the peer, the script, the peer."""

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.drain import SIZE, Shape, script
from benchmarks.peers.engines import Broker, broker
from benchmarks.peers.environments import environment
from benchmarks.peers.processes import Tree, running
from benchmarks.peers.report import Account, Trial, account
from benchmarks.peers.table import Peer

IN_FLIGHT = 100
SCRIPT = Shape("the script", 4_000, IN_FLIGHT, 0.0, 1.0)
WARM_UP = 200  # tasks, after which a worker is up
LIMIT = 120.0  # seconds for a round
STALLED = 30.0  # seconds without a page, after which nothing more is waited for
WORKERS = Path(__file__).parent / "workers"


class Failed(Exception):
    pass


class Bench(msgspec.Struct, frozen=True):
    gateway: str
    folder: Path
    rounds: int


class Stage(msgspec.Struct, frozen=True):
    """A peer with all it needs running."""

    peer: Peer
    binaries: Path
    environ: dict[str, str]
    folder: Path
    broker: Broker
    worker: Tree | None

    @property
    def cpu(self) -> float:
        return self.broker.cpu + (self.worker.cpu if self.worker else 0.0)


def alternate(bench: Bench, measure: Callable[[], Trial]) -> Iterator[Trial]:
    """Each round after one of the script; a peer that left something undone gets no other, for it
    would have to do the rest first.
    """
    for _ in range(bench.rounds):
        rate = script(SCRIPT, bench.gateway, bench.folder).rate
        trial = msgspec.structs.replace(measure(), script_rate=rate)
        yield trial
        if trial.account.missing:
            return


@contextmanager
def on_stage(peer: Peer, bench: Bench) -> Iterator[Stage]:
    binaries = environment(peer.folder, peer.pins)
    folder = bench.folder / peer.folder
    folder.mkdir()
    with broker(peer.engine, folder) as started:
        environ = {
            "PEER_GATEWAY": bench.gateway,
            "PEER_BROKER": started.url,
            "PYTHONPATH": str(WORKERS),
            "PATH": f"{binaries}:{os.environ['PATH']}",
        }
        stage = Stage(peer, binaries, environ, folder, started, worker=None)
        if not peer.worker:
            yield stage
            return
        if peer.prepare:
            _prepare(stage)
        command = [str(binaries / peer.worker[0]), *peer.worker[1:]]
        with running(command, folder=folder, environ=environ) as worker:
            stage = msgspec.structs.replace(stage, worker=worker)
            _warm_up(stage)
            yield stage


def one_round(stage: Stage, count: int) -> Trial:
    """From the first task handed in to the last body kept, by the clock of the files themselves."""
    pages, stamp = _places(stage)
    os.sync()  # neither side pays for what the other left to be written
    used, reaped = stage.cpu, _reaped()
    with _feeding(stage, pages, count, stamp) as feeder:
        whole = _wait(stage, pages, count, feeder)
        if whole and stage.worker:
            feeder.process.wait()
        if feeder.process.poll():
            raise Failed(f"it could not be fed: {feeder.last_words()}")
        cpu = stage.cpu - used
    started, start_up = map(float, stamp.read_text().split())
    counted, ended = _counted(pages, count)
    return Trial(
        account=counted,
        seconds=ended - started,
        cpu=cpu + _reaped() - reaped - start_up,
        script_rate=0.0,
        in_time=whole,
    )


def _prepare(stage: Stage) -> None:
    command = [str(stage.binaries / stage.peer.prepare[0]), *stage.peer.prepare[1:]]
    environ = {**os.environ, **stage.environ}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise Failed(f"{stage.peer.prepare[0]} failed: {done.stderr.strip()[-200:]}")


def _warm_up(stage: Stage) -> None:
    trial = one_round(stage, WARM_UP)
    if trial.account.done < WARM_UP and stage.worker:
        raise Failed(f"its worker did not come up: {stage.worker.last_words()}")


def _places(stage: Stage) -> tuple[Path, Path]:
    pages = Path(tempfile.mkdtemp(dir=stage.folder))  # removed at the end: deleting is work too
    return pages, pages.with_suffix(".stamp")


@contextmanager
def _feeding(stage: Stage, pages: Path, count: int, stamp: Path) -> Iterator[Tree]:
    given = [stage.peer.module, str(pages), str(count), str(stamp)]
    command = [str(stage.binaries / "python"), str(WORKERS / "feed.py"), *given]
    with running(command, folder=stage.folder, environ=stage.environ) as feeder:
        yield feeder


def _wait(stage: Stage, pages: Path, count: int, feeder: Tree) -> bool:
    """Whether all pages came within the limit."""
    deadline = time.monotonic() + LIMIT
    seen, moved = 0, time.monotonic()
    while time.monotonic() < deadline:
        if (now := _kept(pages)) >= count:
            return True
        if now != seen:
            seen, moved = now, time.monotonic()
        ended = not (stage.worker or feeder).runs
        if ended or time.monotonic() - moved > STALLED or feeder.process.poll():
            break
        time.sleep(0.1)
    return _kept(pages) >= count


def _kept(pages: Path) -> int:
    return sum(path.name.isdecimal() for path in pages.iterdir())


def _counted(pages: Path, count: int) -> tuple[Account, float]:
    """What was kept, and when the last of it was."""
    with os.scandir(pages) as found:
        files = [(one.name, one.stat()) for one in found]
    kept = account(((name, stat.st_size) for name, stat in files), asked=count, size=SIZE)
    return kept, max((stat.st_mtime for _, stat in files), default=0.0)


def _reaped() -> float:
    """CPU seconds of the children that were waited for: the feeder, once it has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
