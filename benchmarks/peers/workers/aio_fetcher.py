"""The task for peers that are asynchronous: one aiohttp session for each worker process."""

import aiohttp
import pages

_sessions: list[aiohttp.ClientSession] = []


async def fetch_and_keep(folder: str, number: int) -> None:
    async with _session().get(pages.address(number)) as response:
        pages.keep(folder, number, await response.read())


async def close() -> None:
    while _sessions:
        await _sessions.pop().close()


def _session() -> aiohttp.ClientSession:
    if not _sessions:
        connector = aiohttp.TCPConnector(limit=pages.IN_FLIGHT)
        _sessions.append(aiohttp.ClientSession(connector=connector))
    return _sessions[0]
