"""Uploads of task lists. The service reads them; this side holds one chunk at a time."""

import io
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import msgspec

from conveyor.client.errors import ClientError
from conveyor.client.models import Column, FileFormat, FileInput, Upload
from conveyor.client.transport import (
    CHUNK,
    Failures,
    Network,
    Transport,
    decoded,
    is_retryable,
    of_run,
    path_of,
)

File = str | os.PathLike[str] | BinaryIO
OnSent = Callable[[int], None]  # bytes, of one chunk

COMPRESSED = {".gz", ".gzip", ".zst", ".zstd"}
KINDS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}


def spec_of(file: File, form: FileFormat) -> dict[str, object]:
    """The service's description of a list."""
    kind = form.get("type") or _kind(file)
    if kind != "csv":
        return {"type": kind}
    header, url_column = form.get("header", True), form.get("url_column")
    first: Column = "url" if header else 0
    fields = {"url": first if url_column is None else url_column}
    if (id_column := form.get("id_column")) is not None:
        fields["external_id"] = id_column
    csv = {"header": header, "delimiter": form.get("delimiter", ","), "fields": fields}
    return {"type": kind, "csv": csv}


async def upload(
    transport: Transport, file: File, spec: dict[str, object], on_sent: OnSent | None = None
) -> str:
    """Upload a list as a file input; return its id."""
    content = Content(file, transport.network, on_sent)
    headers = {"Content-Type": "application/json"}

    async def create() -> FileInput:
        length = content.length()
        declared = spec if length is None else {**spec, "size": length}
        body = msgspec.json.encode(declared)
        raw = await transport.call_once("POST", "/job_inputs", body, headers)
        return decoded(raw, FileInput)

    async def send(to: FileInput) -> str:
        await content.send(transport, to.upload)
        return to.file_input_id

    async def create_and_send() -> str:
        return await send(await create())

    # A file input takes one upload. So after a broken connection the list is sent from its start,
    # to a new file input. What can be read only once, such as a pipe, is sent once.
    if content.is_repeatable:
        return await transport.with_retries(create_and_send)
    return await send(await transport.with_retries(create))


async def bad_rows(
    transport: Transport, job_id: str, run_id: str | None
) -> AsyncGenerator[bytes, None]:
    """The report on bad rows, line by line as it arrives."""
    path = path_of(*of_run(job_id, run_id, "ingest_errors"))
    # The report has no cursor, but its lines never change: after a broken connection it is read
    # from the start, and the lines that were given out already are skipped.
    given, failures = 0, Failures(transport)
    while True:
        try:
            async with transport.response("GET", path) as response:
                skip = given
                async for line in response.lines():
                    if skip:
                        skip -= 1
                        continue
                    failures.end()
                    given += 1
                    yield line
            return
        except ClientError as error:
            await failures.wait_or_raise(error, retryable=is_retryable(error))


class Content:
    """The body of an upload: from a path, or from a file that is open in binary mode."""

    def __init__(self, file: File, network: Network, on_sent: OnSent | None) -> None:
        if isinstance(file, io.TextIOBase):
            raise TypeError("the file must be open in binary mode, got one in text mode")
        self._file = file
        self._network = network
        self._on_sent = on_sent or (lambda _: None)
        self._error: Exception | None = None
        self._start = 0
        self.is_repeatable = isinstance(file, (str, os.PathLike)) or file.seekable()
        if not isinstance(file, (str, os.PathLike)) and self.is_repeatable:
            self._start = file.tell()

    def length(self) -> int | None:
        """Its bytes; None for what can be read only once."""
        with ExitStack() as stack:
            return self._open(stack)[1]

    async def send(self, transport: Transport, to: Upload) -> None:
        with ExitStack() as stack:
            source, length = self._open(stack)
            is_elsewhere = urlsplit(to.url)[:2] != urlsplit(transport.base)[:2]
            if length is None and is_elsewhere:
                # Object storage takes nothing whose length is not known before.
                spool = stack.enter_context(tempfile.TemporaryFile())
                await self._network.blocking(shutil.copyfileobj, source, spool, CHUNK)
                source, length = spool, spool.tell()
                spool.seek(0)
            headers = {**to.headers, **({} if length is None else {"Content-Length": str(length)})}
            try:
                await transport.put(to.url, self._chunks(source, length), headers)
            except ClientError:
                # An error of reading the list was raised inside the HTTP library, which reports
                # it as a broken connection.
                if self._error:
                    raise self._error from None
                raise

    def _open(self, stack: ExitStack) -> tuple[BinaryIO, int | None]:
        """The content from its start, and its length; None for what can be read only once."""
        if isinstance(self._file, (str, os.PathLike)):
            source = stack.enter_context(Path(self._file).open("rb"))  # noqa: SIM115 - it is one
            return source, os.fstat(source.fileno()).st_size
        if not self.is_repeatable:
            return self._file, None
        length = self._file.seek(0, os.SEEK_END) - self._start
        self._file.seek(self._start)
        return self._file, length

    async def _chunks(self, source: BinaryIO, length: int | None) -> AsyncIterator[bytes]:
        """A file must have as many bytes as when it was opened: that is its Content-Length."""
        count = 0
        try:
            while chunk := await self._network.blocking(source.read, CHUNK):
                count += len(chunk)
                if length is not None and count > length:
                    break
                yield chunk
                self._on_sent(len(chunk))
            if length not in {None, count}:
                raise ValueError("the list must not change while it is sent")  # noqa: TRY301
        except Exception as error:
            self._error = error
            raise


def _kind(file: File) -> str:
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "")
    return kind_by_name(Path(name if isinstance(name, (str, os.PathLike)) else "")) or "txt"


def kind_by_name(path: Path) -> str | None:
    """`csv` or `ndjson`, if the name says so; compressed files have two suffixes."""
    inner = Path(path.stem) if path.suffix.lower() in COMPRESSED else path
    return KINDS.get(inner.suffix.lower())
