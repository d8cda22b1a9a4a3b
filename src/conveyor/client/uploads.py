"""Lists uploaded as they are: the service reads them, and no more than a chunk is held here."""

import io
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from conveyor.client.errors import ClientError
from conveyor.client.models import Column, FileInput, Upload
from conveyor.client.transport import (
    CHUNK,
    Failures,
    Network,
    Transport,
    decoded,
    may_pass,
    of_run,
    path_of,
)

File = str | os.PathLike[str] | BinaryIO
OnSent = Callable[[int], None]  # bytes, of one chunk

PACKED = {".gz", ".gzip", ".zst", ".zstd"}
KINDS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}


class Csv(msgspec.Struct, frozen=True, kw_only=True):
    """How a list of CSV is to be read."""

    header: bool
    delimiter: str
    url_column: Column | None
    id_column: Column | None

    def spec(self) -> dict[str, object]:
        first: Column = "url" if self.header else 0
        fields = {"url": first if self.url_column is None else self.url_column}
        if self.id_column is not None:
            fields["external_id"] = self.id_column
        return {"header": self.header, "delimiter": self.delimiter, "fields": fields}


def spec_of(file: File, kind: str | None, csv: Csv) -> dict[str, object]:
    """What the service is told about a list; its kind is told by its name unless it is given."""
    kind = kind or _kind(file)
    return {"type": kind, "csv": csv.spec()} if kind == "csv" else {"type": kind}


async def upload(
    transport: Transport, file: File, spec: dict[str, object], on_sent: OnSent | None = None
) -> str:
    """Upload a list as a file input; its id.

    If the connection breaks, the list is sent again as another file input: each takes one upload.
    What cannot be read again is sent once.
    """
    content = Content(file, transport.network, on_sent)
    about = msgspec.json.encode(spec)

    async def file_input() -> FileInput:
        headers = {"Content-Type": "application/json"}
        raw = await transport.call_once("POST", "/job_inputs", about, headers)
        return decoded(raw, FileInput)

    async def sent(to: FileInput) -> str:
        await content.send(transport, to.upload)
        return to.file_input_id

    async def both() -> str:
        return await sent(await file_input())

    if content.is_repeatable:
        return await transport.patiently(both)
    return await sent(await transport.patiently(file_input))


async def bad_rows(
    transport: Transport, job_id: str, run_id: str | None
) -> AsyncGenerator[bytes, None]:
    """The lines of the report on bad rows as they come; a report that is cut is read on."""
    path = path_of(*of_run(job_id, run_id, "ingest_errors"))
    given, failures = 0, Failures(transport)
    while True:
        try:
            async with aclosing(_reported(transport, path, skip=given)) as rows:
                async for row in rows:
                    failures.end()
                    given += 1
                    yield row
            return
        except ClientError as error:
            await failures.rest(error, passes=may_pass(error))


class Content:
    """A list as the body of a request: a path, or a file that is open in binary mode."""

    def __init__(self, file: File, network: Network, on_sent: OnSent | None) -> None:
        if isinstance(file, io.TextIOBase):
            raise TypeError("a list is sent as it is: open the file in binary mode")
        self._file = file
        self._network = network
        self._on_sent = on_sent or (lambda _: None)
        self._error: Exception | None = None
        self._start = 0
        self.is_repeatable = isinstance(file, (str, os.PathLike)) or file.seekable()
        if not isinstance(file, (str, os.PathLike)) and self.is_repeatable:
            self._start = file.tell()

    async def send(self, transport: Transport, to: Upload) -> None:
        with self._opened() as (source, length):
            headers = {**to.headers, **({} if length is None else {"Content-Length": str(length)})}
            try:
                await transport.put(to.url, self._chunks(source, length), headers)
            except ClientError:
                if self._error:  # of the list; the network took it for its own
                    raise self._error from None
                raise

    @contextmanager
    def _opened(self) -> Iterator[tuple[BinaryIO, int | None]]:
        if isinstance(self._file, (str, os.PathLike)):
            with Path(self._file).open("rb") as source:
                yield source, os.fstat(source.fileno()).st_size
            return
        if self.is_repeatable:
            self._file.seek(self._start)
        yield self._file, None

    async def _chunks(self, source: BinaryIO, length: int | None) -> AsyncIterator[bytes]:
        """A file has as many bytes as it had when it was opened, or the upload fails."""
        count = 0
        try:
            while chunk := await self._network.blocking(source.read, CHUNK):
                count += len(chunk)
                if length is not None and count > length:
                    break
                yield chunk
                self._on_sent(len(chunk))
            if length not in {None, count}:
                raise ValueError("the list changed while it was sent")  # noqa: TRY301
        except Exception as error:
            self._error = error
            raise


async def _reported(transport: Transport, path: str, *, skip: int) -> AsyncGenerator[bytes, None]:
    async with transport.response("GET", path) as response:
        async for line in response.lines():
            if skip:
                skip -= 1
                continue
            yield line


def _kind(file: File) -> str:
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "")
    path = Path(name if isinstance(name, (str, os.PathLike)) else "")
    inner = Path(path.stem) if path.suffix.lower() in PACKED else path
    return KINDS.get(inner.suffix.lower(), "txt")
