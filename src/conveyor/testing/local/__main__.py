"""`make up-aws` and `make up-postgres`: a deployment of one api and two workers on loopback, until it is stopped."""

import argparse
import asyncio
import base64
import fcntl
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from conveyor.testing.local.ports import free_port
from conveyor.testing.local.servers import HOST, conveyor, listens
from conveyor.testing.local.stacks import STACKS
from conveyor.testing.local.supervisor import Program, StartFailed, Supervisor

WORKERS = ("worker-1", "worker-2")
TRY_IT = """
Try it, with any API key:

  export CONVEYOR_URL={url} CONVEYOR_KEY=my-key
  printf 'https://ok.example/%s\\n' 1 2 3 > urls.txt
  .venv/bin/conveyor submit urls.txt --follow
  curl -H 'X-API-Key: my-key' {url}/jobs

Each process has its id in {folder}/<name>.pid and its output in {folder}/<name>.log:
{names}.
Kill any of them: it is started again after a second, and no task is lost. Ctrl-C stops them all.
"""


async def up(name: str, folder: Path, port: int) -> None:
    supervisor, port, gateway_port = Supervisor(folder), port or free_port(), free_port()
    deployment = STACKS[name](folder)
    settings = {
        **deployment.settings,
        "CONVEYOR_GATEWAY": f"http://{HOST}:{gateway_port}/v1/",
        "CONVEYOR_ENCRYPTION_KEY": _root_key(folder / "encryption.key"),
    }
    programs = [
        *deployment.programs,
        Program(
            name="gateway",
            command=[sys.executable, "-m", "conveyor", "mock-gateway", "--port", str(gateway_port)],
            answers=listens(gateway_port),
        ),
    ]
    async with AsyncExitStack() as stack:
        stopped = _when_stopped()
        for program in deployment.creation:
            await supervisor.once(program)
        for program in programs:
            await _start(stack, supervisor, program)
        await supervisor.once(conveyor("migrate", "migrate", settings=settings))
        processes = [
            conveyor("api", "api", "--port", str(port), port=port, settings=settings),
            *(conveyor(one, "worker", "--metrics-port", "0", settings=settings) for one in WORKERS),
        ]
        for program in processes:
            await _start(stack, supervisor, program)
        url = f"http://{HOST}:{port}/v1"
        names = ", ".join(program.name for program in (*programs, *processes))
        print(TRY_IT.format(url=url, folder=folder, names=names))
        print(f"ready {url}", flush=True)
        await stopped.wait()


async def _start(stack: AsyncExitStack, supervisor: Supervisor, program: Program) -> None:
    print(f"starting {program.name} ...", flush=True)
    await stack.enter_async_context(supervisor.running(program))


def _when_stopped() -> asyncio.Event:
    stopped = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, stopped.set)
    return stopped


def _root_key(place: Path) -> str:
    """The key under which all processes encrypt; kept, so that a later start reads what it wrote."""
    if not place.exists():
        place.touch(mode=0o600)
        place.write_bytes(base64.b64encode(os.urandom(32)))
    return place.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conveyor.testing.local", description=__doc__)
    parser.add_argument("stack", choices=sorted(STACKS))
    parser.add_argument("--folder", type=Path, default=Path("run"), help="of ids, logs and data")
    parser.add_argument("--port", type=int, default=8080, help="of the api; 0 for any free one")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with (given.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"a deployment in {given.folder} is running: stop it, or choose --folder")
        _run(given)


def _run(given: argparse.Namespace) -> None:
    try:
        asyncio.run(up(given.stack, given.folder.resolve(), given.port))
    except StartFailed as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    main()
