"""Hands COUNT tasks to a peer: `python feed.py MODULE FOLDER COUNT STAMP`.

When it begins, its imports done, it writes the time and the CPU seconds used so far into STAMP: the
start of an interpreter is charged to nobody, the bare script included. A crawler does its whole
crawl here.
"""

import asyncio
import importlib
import inspect
import sys
import time
from pathlib import Path


def main() -> None:
    module, folder, count, stamp = sys.argv[1:]
    feed = importlib.import_module(module).feed
    Path(stamp).write_text(f"{time.time()} {time.process_time()}")
    numbers = range(int(count))
    if inspect.iscoroutinefunction(feed):
        asyncio.run(feed(folder, numbers))
    else:
        feed(folder, numbers)


if __name__ == "__main__":
    main()
