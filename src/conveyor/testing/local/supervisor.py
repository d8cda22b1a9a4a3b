"""Programs that are kept running: one that ends is started again, under a new process id.

The id of each program is in `<folder>/<name>.pid` and its output in `<folder>/<name>.log`, so that a
person or a script can kill any of them and watch what the others do.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

RESTART_AFTER = 1.0  # seconds
STARTS_WITHIN = 120.0
STOPS_WITHIN = 20.0
ASK_EVERY = 0.05

Answers = Callable[[], Awaitable[bool]]


class StartFailed(Exception):
    """A program ended, or did not answer, when it was started for the first time."""


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    answers: Answers | None = None  # whether it is up; None: there is nothing to wait for
    user: str | None = None  # PostgreSQL refuses to run as root
    stop_signal: signal.Signals = signal.SIGTERM


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = False

    @asynccontextmanager
    async def running(self, program: Program) -> AsyncIterator[None]:
        """Start a program, wait until it answers, and keep it running until the end."""
        process = await self._start(program)
        keeper: asyncio.Task[None] | None = None
        try:
            await self._wait(program, process)
            keeper = asyncio.create_task(self._keep(program, process))
            yield
        finally:
            self._stopping = True
            if keeper is not None:
                keeper.cancel()
                with suppress(asyncio.CancelledError):
                    await keeper
            await self._stop(program)

    async def once(self, program: Program) -> None:
        """Run a program to its end; `StartFailed` if it does not succeed."""
        process = await self._start(program)
        try:
            if await process.wait():
                raise StartFailed(self._told(program))
        finally:
            await self._stop(program)

    async def _start(self, program: Program) -> asyncio.subprocess.Process:
        with self._log(program).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **program.environ},
                user=program.user,
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in order
            )
        self._processes[program.name] = process
        new = self._pid(program).with_suffix(".pid.new")
        new.write_text(f"{process.pid}\n")
        new.rename(self._pid(program))  # at once, for those who read it meanwhile
        return process

    async def _wait(self, program: Program, process: asyncio.subprocess.Process) -> None:
        if program.answers is None:
            return
        try:
            async with asyncio.timeout(STARTS_WITHIN):
                while not await program.answers():
                    if process.returncode is not None:
                        raise StartFailed(self._told(program))
                    await asyncio.sleep(ASK_EVERY)
        except TimeoutError:
            what = f"{program.name} does not answer within {STARTS_WITHIN:.0f} s"
            raise StartFailed(f"{what}; its output is in {self._log(program)}") from None

    async def _keep(self, program: Program, process: asyncio.subprocess.Process) -> None:
        while True:
            code = await process.wait()
            if self._stopping:
                return
            print(f"{program.name} ended with {code}; started again in 1 s", file=sys.stderr)
            await asyncio.sleep(RESTART_AFTER)
            process = await self._start(program)

    async def _stop(self, program: Program) -> None:
        process = self._processes.pop(program.name, None)
        if process and process.returncode is None:
            process.send_signal(program.stop_signal)
            try:
                async with asyncio.timeout(STOPS_WITHIN):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._pid(program).unlink(missing_ok=True)

    def _told(self, program: Program) -> str:
        """The end of what a program wrote, which says why it failed."""
        lines = self._log(program).read_text(errors="replace").splitlines()[-10:]
        return "\n".join([f"{program.name} could not be started:", *lines])

    def _log(self, program: Program) -> Path:
        return self._folder / f"{program.name}.log"

    def _pid(self, program: Program) -> Path:
        return self._folder / f"{program.name}.pid"
