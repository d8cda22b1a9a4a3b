"""Exports: all of a run in one file, fetched from wherever the download was cut."""

import asyncio
from pathlib import Path

import aiohttp
from yarl import URL

from conveyor.client.errors import NotExported, Unreachable, refusal
from conveyor.client.shapes import Export
from conveyor.client.transport import CHUNK, Transport, path_of

PARTIAL, NO_SUCH_PART = 206, 416


async def exported(transport: Transport, export: Export, poll_every: float) -> Export:
    """The export once its file is there, with a fresh link to it."""
    while True:
        path = path_of("jobs", export.job_id, "runs", export.run_id, "exports", export.export_id)
        now = await transport.read(Export, path)
        export = now.of(export.job_id, export.run_id)
        if export.status == "failed":
            raise NotExported(export.export_id, export.error or "no reason was given")
        if export.status == "completed" and export.download_url:
            return export
        await asyncio.sleep(poll_every)


async def fetched(transport: Transport, export: Export, file: Path, poll_every: float) -> int:
    """Save the file of an export, which appears under its name only when whole; its length."""
    unfinished = file.with_name(f"{file.name}.{export.export_id}.part")

    async def once() -> None:
        ready = await exported(transport, export, poll_every)
        await _fetch_rest(transport, ready.download_url or "", unfinished)

    await transport.patiently(once)
    length = unfinished.stat().st_size
    unfinished.replace(file)
    return length


async def _fetch_rest(transport: Transport, link: str, file: Path) -> None:
    had = file.stat().st_size if file.exists() else 0  # noqa: ASYNC240 - a quick call
    headers = {"Range": f"bytes={had}-"} if had else {}
    try:
        # A session of its own: the link's host may be another's, and the key is not for it.
        async with (
            aiohttp.ClientSession(timeout=transport.timeout, auto_decompress=False) as session,
            session.get(URL(link, encoded=True), headers=headers) as answer,
        ):
            if answer.status == NO_SUCH_PART:
                file.unlink()  # noqa: ASYNC240 - a quick call
                raise Unreachable("what was there is no part of the file; it is fetched anew")
            if answer.status >= 300:
                raise refusal(answer.status, await answer.read(), None)
            with file.open("ab" if answer.status == PARTIAL else "wb") as into:
                async for chunk in answer.content.iter_chunked(CHUNK):
                    await asyncio.to_thread(into.write, chunk)
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise Unreachable(f"the download was cut: {str(error) or type(error).__name__}") from error
