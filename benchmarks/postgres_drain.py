"""How fast is a job drained on PostgreSQL, by one worker and by two, against the bare script?

From submit to completed, bodies of 20 KB, one api, commits on disk. The database, Valkey and the
gateway share the cores with the workers. The choices:

- `BODIES=segments` (default): a file for each settle and run, in a folder that the workers share;
  `files`: a file for each body in that folder; `s3`: segments on an S3 server on the same cores.
- `COORDINATION=valkey` (default), or `postgres`: in the database of the rows.
"""

import asyncio
import os
import statistics
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.harness.postgres import a_postgres, url_of
from tests.harness.programs import Program, program
from tests.harness.valkey import a_valkey
from tests.s3_server import seaweedfs_at

from benchmarks.drain import SIZE, Round, Shape, drain, script
from benchmarks.fast_gateway import fast_gateway
from benchmarks.postgres import server_cpu
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.testing.local.ports import free_port

BODIES = os.environ.get("BODIES", "segments")
COORDINATION = os.environ.get("COORDINATION", "valkey")
WORKERS = (1, 2)
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SHAPE = Shape("at once, 100 in flight", int(os.environ.get("TASKS", "10000")), 100, 0.0, 0.8)
OF_ONE = 0.9  # the rate of two workers on two cores


class Deployment(Program):
    """One api and its workers. Their CPU time is that of all of them and of their servers."""

    def __init__(self, api: Program, workers: Sequence[Program], servers: Sequence[int]) -> None:
        super().__init__(api.process, api.url)
        self._parts = (api, *workers)
        self._servers = servers

    @property
    def cpu(self) -> float:
        return sum(part.cpu for part in self._parts) + sum(map(server_cpu, self._servers))


def main() -> None:
    rates: dict[int, list[Round]] = {}
    print(f"load average before: {_load()}")
    with tempfile.TemporaryDirectory() as name, fast_gateway(SIZE) as gateway:
        folder = Path(name)
        folder.chmod(0o755)
        for workers in WORKERS:
            with deployment(gateway, folder / str(workers), workers=workers) as deployed:
                rates[workers] = _compare(deployed, gateway, folder, workers)
    alone, both = (statistics.median(one.rate for one in rates[workers]) for workers in WORKERS)
    print(f"two workers: {both / alone:.2f} of the rate of one (goal {OF_ONE})")
    print(f"load average after: {_load()}")


def _compare(deployed: Program, gateway: str, folder: Path, workers: int) -> list[Round]:
    drain(deployed, SHAPE.count // 2, SHAPE.in_flight)  # finds the key's limit as well
    ours, ratios = list[Round](), list[float]()
    for _ in range(ROUNDS):
        bare = script(SHAPE, gateway, folder)
        ours.append(drain(deployed, SHAPE.count, SHAPE.in_flight))
        ratios.append(ours[-1].rate / bare.rate)
        print(
            f"  {ours[-1].rate:.0f}/s, {ours[-1].cpu:.3f} ms CPU a task; script {bare.rate:.0f}/s"
        )
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    told = f"{middle:.2f} of the bare script's rate ({low:.2f} to {high:.2f})"
    how = f"bodies on {BODIES}, coordination on {COORDINATION}"
    print(f"{workers} worker(s), {how}: {told}, goal {SHAPE.goal}", flush=True)
    return ours


@contextmanager
def deployment(
    gateway: str,
    folder: Path,
    *,
    workers: int,
    bodies: str = BODIES,
    coordination: str = COORDINATION,
) -> Iterator[Deployment]:
    """One api and workers on a database of their own."""
    folder.mkdir()
    with a_postgres(18, "-c", "shared_buffers=256MB") as server, ExitStack() as stack:
        address = server.address("postgres")
        asyncio.run(migrate_at(address))
        environ = {
            "CONVEYOR_ENGINES": "postgres",
            "CONVEYOR_METADATA": url_of(address),
            "CONVEYOR_ENCRYPTION_KEY": b64encode(bytes(32)).decode(),
            "CONVEYOR_GATEWAY": gateway,
            "CONVEYOR_LOG_LEVEL": "warning",
            "CONVEYOR_DATA": str(folder),
        }
        servers = [server.process.pid]
        if coordination == "valkey":
            valkey = stack.enter_context(a_valkey())
            environ["CONVEYOR_COORDINATION"] = valkey.url
            servers.append(valkey.process.pid)
        place = f"files:{folder}"
        layout = "?layout=segments" if bodies == "segments" else ""
        if bodies == "s3":
            (folder / "s3").mkdir()
            storage = stack.enter_context(seaweedfs_at(folder / "s3"))
            place, layout = f"s3:{storage.new_address()}", "&layout=segments"
            environ |= storage.environ
        environ |= {"CONVEYOR_BODIES": place + layout, "CONVEYOR_BLOBS": place}

        def start(role: str, flag: str) -> Program:
            port = free_port()
            url = f"http://127.0.0.1:{port}/v1"
            return stack.enter_context(program([role, flag, str(port)], url, environ=environ))

        started = [start("worker", "--metrics-port") for _ in range(workers)]
        yield Deployment(start("api", "--port"), started, servers)


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


if __name__ == "__main__":
    main()
