"""The task for peers of threads, greenlets or processes: one urllib3 pool for each process."""

import pages
import urllib3

_pool = urllib3.PoolManager(maxsize=pages.IN_FLIGHT, block=True)


def fetch_and_keep(folder: str, number: int) -> None:
    pages.keep(folder, number, _pool.request("GET", pages.address(number)).data)
