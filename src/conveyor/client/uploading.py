"""Lists sent to a slot of the service as they are: read by it, and never held here."""

import asyncio
import io
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from conveyor.client.errors import ClientError
from conveyor.client.shapes import BadRow, Column
from conveyor.client.transport import CHUNK, Transport, decoded, may_pass, path_of

File = str | os.PathLike[str] | BinaryIO

PACKED = {".gz", ".gzip", ".zst", ".zstd"}
KINDS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}


class Upload(msgspec.Struct, frozen=True):
    url: str
    headers: dict[str, str] = {}


class Slot(msgspec.Struct, frozen=True):
    file_input_id: str
    upload: Upload


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


async def upload(transport: Transport, file: File, spec: dict[str, object]) -> str:
    """Send a list to a slot; the slot's id.

    If the connection breaks it is sent again, to another slot: a slot takes one list. What cannot
    be read again is sent once.
    """
    content = Content(file)
    about = msgspec.json.encode(spec)

    async def slot() -> Slot:
        headers = {"Content-Type": "application/json"}
        raw = await transport.call_once("POST", "/job_inputs", about, headers)
        return decoded(raw, Slot)

    async def sent(to: Slot) -> str:
        await content.send(transport, to.upload)
        return to.file_input_id

    async def both() -> str:
        return await sent(await slot())

    if content.is_repeatable:
        return await transport.patiently(both)
    return await sent(await transport.patiently(slot))


async def bad_rows(
    transport: Transport, job_id: str, run_id: str | None
) -> AsyncGenerator[BadRow, None]:
    """The report of bad rows as it comes; when it is cut it is asked for again, and gone on with."""
    path = path_of("jobs", job_id, *(("runs", run_id) if run_id else ()), "ingest_errors")
    given, fails = 0, 0
    while True:
        try:
            async with aclosing(_reported(transport, path, skip=given)) as rows:
                async for row in rows:
                    given, fails = given + 1, 0
                    yield row
            return
        except ClientError as error:
            fails += 1
            if not may_pass(error) or fails >= transport.patience.attempts:
                raise
        await asyncio.sleep(transport.patience.rest(fails))


class Content:
    """A list as a body, from where it stands: a path, or a file that is open in binary mode."""

    def __init__(self, file: File) -> None:
        if isinstance(file, io.TextIOBase):
            raise TypeError("a list is sent as it is: open the file in binary mode")
        self._file = file
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
                if self._error:  # the list's own, which the HTTP library takes for the network's
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
        try:
            async for chunk in _read(source, length):
                yield chunk
        except Exception as error:
            self._error = error
            raise


async def _read(source: BinaryIO, length: int | None) -> AsyncIterator[bytes]:
    """A file by its path has as many bytes as it had when it was opened."""
    count = 0
    while chunk := await asyncio.to_thread(source.read, CHUNK):
        count += len(chunk)
        if length is not None and count > length:
            break
        yield chunk
    if length not in {None, count}:
        raise ValueError("the list changed while it was sent")


async def _reported(transport: Transport, path: str, *, skip: int) -> AsyncGenerator[BadRow, None]:
    async with transport.answer("GET", path) as answer:
        async for line in answer.content:
            if skip:
                skip -= 1
                continue
            yield decoded(line, BadRow)


def _kind(file: File) -> str:
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "")
    path = Path(name if isinstance(name, (str, os.PathLike)) else "")
    inner = Path(path.stem) if path.suffix.lower() in PACKED else path
    return KINDS.get(inner.suffix.lower(), "txt")
