"""What the tests ask of the process that forks, and what it answers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from tests.crash.deaths import Crossing

Ask = Literal["record", "deaths", "pairs"]
# `embedded`: each process dies, and the next one opens its folder. Otherwise one of two services
# dies that share a store, in which the rows are the queue or beside which there are queues.
Engine = Literal["embedded", "rows", "queues"]
EMBEDDED: Engine = "embedded"
SHARED: tuple[Engine, ...] = ("rows", "queues")


class Question(msgspec.Struct, frozen=True):
    ask: Ask
    scenario: str
    seed: str = ""  # chooses a sample of the points to die at; without it, all of them
    at: str = ""  # of pairs: the call at which the first death is; else at each
    engine: Engine = EMBEDDED


class Report(msgspec.Struct, frozen=True, kw_only=True):
    calls: int = 0
    deaths: int = 0
    crossed: list[Crossing] = []
    failures: list[str] = []


class Forker:
    """Asks a process of its own: this one has threads, and must not be forked."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin
        assert process.stdout
        self._into, self._out = process.stdin, process.stdout

    def ask(
        self, ask: Ask, scenario: str, *, seed: str = "", at: str = "", engine: Engine = EMBEDDED
    ) -> Report:
        self._into.write(msgspec.json.encode(Question(ask, scenario, seed, at, engine)) + b"\n")
        self._into.flush()
        return msgspec.json.decode(self._out.readline(), type=Report)


@contextmanager
def a_forker() -> Iterator[Forker]:
    # The order of sets is part of the way through the program: it must not change meanwhile.
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash", "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    ) as process:
        yield Forker(process)
