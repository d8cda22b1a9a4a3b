"""Starts an emulator of AWS whose SQS has a clock that a test sets ahead, instead of waiting.

It runs in the environment of the emulators. The file that `SQS_AHEAD` names holds the seconds by which
the clock is ahead, as a double.
"""

import mmap
import os
import struct
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> None:
    program = sys.argv.pop(1)
    with Path(os.environ["SQS_AHEAD"]).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)

    def now() -> float:
        ahead: float = struct.unpack("d", shared)[0]
        return time.time() + ahead

    if program == "ministack":
        sqs: Any = import_module("ministack.services.sqs")
        sqs.time = SimpleNamespace(time=now)
        sys.exit(import_module("ministack.app").main())
    models: Any = import_module("moto.sqs.models")
    models.unix_time = now
    models.unix_time_millis = lambda: now() * 1000
    sys.exit(import_module("moto.server").main())


if __name__ == "__main__":
    main()
