"""One api and some workers as real processes, on a served store with Valkey and S3 beside it."""

import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conveyor.testing.local.ports import free_port
from tests.harness.programs import Program, wait_for
from tests.harness.valkey import Valkey
from tests.s3_server import S3Server

# So that what a killed process held is free again soon.
SHORT_LEASES = {
    "CONVEYOR_LEASE": "3s",
    "CONVEYOR_RENEWAL": "500ms",
    "CONVEYOR_SWEEP_EVERY": "1s",
    "CONVEYOR_RETRY_FIRST_DELAY": "100ms",
    "CONVEYOR_GRACE": "200ms",
    "CONVEYOR_LOG_LEVEL": "warning",
}
LEASE = 3
ROOT_KEY = b64encode(bytes(32)).decode()


class Process:
    """A process that is killed and started again, under the same command."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], log: Path):
        self.name = name
        self._command = [sys.executable, "-m", "conveyor.testing", *command]
        self._environ = {**os.environ, **environ}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                self._command, stdout=sink, stderr=sink, env=self._environ
            )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """End it gracefully; return its exit code."""
        return self._end(signal.SIGTERM)

    def suspend(self) -> None:
        """Let it stand still, as a machine does that is short of memory."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    @property
    def exit_code(self) -> int | None:
        assert self._process
        return self._process.poll()

    def wait_for(self, url: str) -> None:
        """Wait until it answers. It is started again if it ends: a store that fails may refuse it."""
        while True:
            assert self._process
            try:
                wait_for(url, self._process)
            except RuntimeError:
                if self.exit_code is None:
                    raise
                self.start()
            else:
                return

    def _end(self, how: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(how)
        return process.wait()


@dataclass(frozen=True, slots=True)
class Cluster:
    url: str  # the base URL that clients take
    api: Process
    workers: Sequence[Process]
    store: Program
    s3_address: str
    logs: Path

    @property
    def processes(self) -> Sequence[Process]:
        return (self.api, *self.workers)

    def start(self, process: Process) -> None:
        process.start()
        if process is self.api:
            process.wait_for(self.url)

    def start_ended(self) -> None:
        """Start again what has ended by itself, as a supervisor does."""
        for process in self.processes:
            if process.exit_code is not None:
                self.start(process)


@contextmanager
def cluster(
    folder: Path,
    *,
    gateway: Program,
    valkey: Valkey,
    s3: S3Server,
    workers: int = 2,
    queued: bool = False,
    rows: str = "",
    environ: Mapping[str, str] | None = None,
    of_each: Callable[[str], Mapping[str, str]] = lambda _name: {},
    faults: str | None = None,
) -> Iterator[Cluster]:
    """`rows` is the URL of their engine; without it they are in a served store.

    `of_each` gives further settings of a process by its name: api, worker-1, worker-2 and so on.

    With a seed of `faults` that store fails: a process may then end at its start.
    """
    port, place = free_port(), s3.new_address()
    with ExitStack() as stack:
        served = stack.enter_context(served_store(faults))
        store = rows or served.url
        settings = {
            **s3.environ,
            **SHORT_LEASES,
            "CONVEYOR_DATA": str(folder),
            "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
            "CONVEYOR_GATEWAY": gateway.url,
            "CONVEYOR_METADATA": store,
            "CONVEYOR_TASKS": store,
            **({"CONVEYOR_QUEUES": store} if queued else {}),
            "CONVEYOR_CONTROL_QUEUE": store,
            "CONVEYOR_BODIES": f"s3:{place}",
            "CONVEYOR_BLOBS": f"s3:{place}",
            "CONVEYOR_COORDINATION": f"{valkey.url}?prefix=cluster-{port}",
            **(environ or {}),
        }

        def process(name: str, *command: str) -> Process:
            environ = {**settings, **of_each(name)}
            made = Process(name, command, environ, folder / f"{name}.log")
            stack.callback(made.stop)
            return made

        api = process("api", "api", "--port", str(port))
        numbers = range(1, workers + 1)
        others = [process(f"worker-{n}", "worker", "--metrics-port", "0") for n in numbers]
        made = Cluster(f"http://127.0.0.1:{port}/v1", api, others, served, place, folder)
        for one in made.processes:
            made.start(one)
        yield made


@contextmanager
def served_store(faults: str | None = None) -> Iterator[Program]:
    command = [sys.executable, "-m", "conveyor.testing.shared", "--lease", str(LEASE)]
    command += ["--faults", faults] if faults else []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            yield Program(process, process.stdout.readline().decode().strip())
        finally:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a test may have suspended it
