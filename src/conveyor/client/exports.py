"""Exports: all of a run in one file, downloaded from where an earlier download was cut."""

from collections.abc import Callable
from pathlib import Path

from conveyor.client.errors import ClientError, ExportError, UnreachableError, refusal
from conveyor.client.models import RunExport
from conveyor.client.transport import Failures, Transport, may_pass, of_run, path_of

PARTIAL, NO_SUCH_PART = 206, 416

OnReceived = Callable[[int, int | None], None]  # bytes so far, and in all where that is known


async def export_state(transport: Transport, export: RunExport) -> RunExport:
    path = path_of(*of_run(export.job_id, export.run_id, "exports", export.export_id))
    return (await transport.read(RunExport, path)).of(export.job_id, export.run_id)


async def completed_export(transport: Transport, export: RunExport, poll_every: float) -> RunExport:
    """The export once its file is there, with a fresh link to it."""
    while True:
        export = await export_state(transport, export)
        if export.status == "failed":
            raise ExportError(export.export_id, export.error or "no reason was given")
        if export.status == "completed" and export.download_url:
            return export
        await transport.network.sleep(poll_every)


async def download(
    transport: Transport,
    export: RunExport,
    file: Path,
    poll_every: float,
    on_received: OnReceived | None,
) -> int:
    """Save the file of an export, which appears under its name only when whole; its length."""
    # Named after the export: what is there of it is never the beginning of another.
    unfinished = file.with_name(f"{file.name}.{export.export_id}.part")
    failures = Failures(transport)
    while True:
        had = _size(unfinished)
        try:
            ready = await completed_export(transport, export, poll_every)
            await _fetch_rest(transport, ready.download_url or "", unfinished, on_received)
            break
        except ClientError as error:
            if _size(unfinished) > had:
                failures.end()
            await failures.rest(error, passes=may_pass(error))
    length = _size(unfinished)
    unfinished.replace(file)
    return length


async def _fetch_rest(
    transport: Transport, link: str, file: Path, on_received: OnReceived | None
) -> None:
    had = _size(file)
    headers = {"Range": f"bytes={had}-"} if had else {}
    async with transport.exchange("GET", link, headers=headers) as response:
        if response.status == NO_SUCH_PART:
            # It is as long as the whole, or longer: that tells nothing about what is in it.
            file.unlink()  # noqa: ASYNC240 - a quick call
            raise UnreachableError("the partial file does not belong to this export")
        if response.status >= 300:
            raise refusal(response.status, await response.read(), response.headers)
        done = had if response.status == PARTIAL else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with file.open("ab" if done else "wb") as into:
            async for chunk in response.chunks():
                await transport.network.blocking(into.write, chunk)
                done += len(chunk)
                if on_received:
                    on_received(done, total)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
