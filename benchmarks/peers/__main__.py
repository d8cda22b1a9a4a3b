"""`make bench-peers`: the libraries people would use instead, doing the work of `drain.py`.

`python -m benchmarks.peers [--rounds N] [--tasks N] [PEER ...]`
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import httpx
from tests.harness.programs import Program, service

from benchmarks.drain import SIZE, drain
from benchmarks.fast_gateway import fast_gateway
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.report import Account, Row, Trial, markdown, printed
from benchmarks.peers.rounds import (
    IN_FLIGHT,
    LIMIT,
    SCRIPT,
    Bench,
    Failed,
    alternate,
    on_stage,
    one_round,
)
from benchmarks.peers.table import BROKERS, PEERS, Peer
from benchmarks.postgres_drain import deployment
from conveyor import __version__

OURS, ON_POSTGRES = "Conveyor", "Conveyor-PostgreSQL"
OUR_COUNT = 12_000
ROUNDS = 3


def main() -> None:
    asked = _asked()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, fast_gateway(SIZE) as gateway:
        folder = Path(name)
        folder.chmod(0o755)  # a broker may have to run as another user
        bench = Bench(gateway, folder, asked.rounds)
        print(f"load at the start: {_load()}", flush=True)
        if _wanted(OURS, asked.peers):
            rows.append(_told(_conveyor(bench, asked.tasks or OUR_COUNT)))
        if _wanted(ON_POSTGRES, asked.peers):
            rows.append(_told(_conveyor_on_postgres(bench, asked.tasks or OUR_COUNT)))
        rows += [
            _told(_row(peer, bench, asked.tasks or peer.count))
            for peer in PEERS
            if _wanted(peer.name, asked.peers)
        ]
        print(f"load at the end: {_load()}")
    print(f"\n{printed(rows)}\n\n{markdown(rows)}")
    print(
        f"\n{asked.rounds} rounds, each after one of the script with {SCRIPT.count:,} pages;"
        f" {IN_FLIGHT} in flight, {SIZE:,} bytes a page, {LIMIT:.0f} s a round at most."
    )


def _row(peer: Peer, bench: Bench, count: int) -> Row:
    trials: list[Trial] = []
    failure = ""
    try:
        with on_stage(peer, bench) as stage:
            trials.extend(alternate(bench, lambda: one_round(stage, count)))
    except NotInstalled as why:
        failure = f"not installed: {why}"
    except (Failed, RuntimeError, OSError) as why:
        failure = f"failed: {why}"
    return Row(
        peer=peer.name,
        version=peer.version,
        broker=BROKERS[peer.engine],
        survives=peer.survives,
        notes=f"{peer.notes}; {count:,} tasks a round",
        trials=tuple(trials),
        failure=failure,
    )


def _conveyor(bench: Bench, count: int) -> Row:
    with service(
        gateway=bench.gateway, data=bench.folder / "conveyor", flags=("--log-level", "warning")
    ) as program:
        drain(program, count // 2, IN_FLIGHT)  # finds the key's limit as well
        trials = tuple(alternate(bench, lambda: _drained(program, count)))
    return Row(
        peer=OURS,
        version=__version__,
        broker="none",
        survives="yes: those in hand are taken up at the next start, through power cuts too",
        notes=f"one process, durability `power`; {count:,} tasks a round",
        trials=trials,
    )


def _conveyor_on_postgres(bench: Bench, count: int) -> Row:
    place = bench.folder / "shared"
    with deployment(bench.gateway, place, workers=1) as program:
        drain(program, count // 2, IN_FLIGHT)
        trials = tuple(alternate(bench, lambda: _drained(program, count)))
    return Row(
        peer=ON_POSTGRES,
        version=__version__,
        broker=BROKERS["postgres"],
        survives="yes: those of a dead worker are taken over after 30 s",
        notes=f"one api and one worker, Valkey, segments in a folder; {count:,} tasks a round",
        trials=trials,
    )


def _drained(program: Program, count: int) -> Trial:
    done = drain(program, count, IN_FLIGHT)
    with httpx.Client(headers={"X-API-Key": "benchmark"}, timeout=60) as client:
        listed = client.get(f"{program.url}/jobs", params={"limit": 1}).raise_for_status().json()
    succeeded = int(listed["jobs"][0]["latest_run"]["stats"]["successful"])
    return Trial(
        account=Account(done=succeeded, missing=count - succeeded, doubled=0, torn=0),
        seconds=count / done.rate,
        cpu=done.cpu * count / 1000,
        script_rate=0.0,
    )


def _told(row: Row) -> Row:
    rates = ", ".join(
        f"{trial.rate:.0f}/s of {trial.script_rate:.0f}/s ({trial.rate / trial.script_rate:.2f})"
        for trial in row.trials
    )
    print(f"{row.peer}: {'; '.join(filter(None, (rates, row.failure)))}", flush=True)
    return row


def _wanted(name: str, peers: list[str]) -> bool:
    return not peers or name.lower() in peers


def _asked() -> argparse.Namespace:
    known = [OURS.lower(), ON_POSTGRES.lower(), *(peer.folder for peer in PEERS)]
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(known)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", type=int, default=0, help="a round, instead of each one's own")
    asked = parser.parse_args()
    if unknown := {name.lower() for name in asked.peers} - set(known):
        sys.exit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    asked.peers = [name.lower() for name in asked.peers]
    return asked


def _load() -> str:
    return " ".join(f"{one:.2f}" for one in os.getloadavg())


if __name__ == "__main__":
    main()
