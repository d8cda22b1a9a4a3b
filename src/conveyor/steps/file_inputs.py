"""File inputs: create one, and receive its upload as a stream.

The whole file is stored before the row of the file input names it. Each upload has its own key; of
two concurrent ones, the first that is complete stays.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from conveyor.domain import file_input as file_input_rules
from conveyor.domain.file_input import FileInput, upload_key
from conveyor.domain.ids import CallerId, InputId
from conveyor.domain.task_list.decompress import declared_compression
from conveyor.domain.task_list.spec import parse_spec
from conveyor.errors import (
    ConveyorError,
    FileInputNotFound,
    InvalidArgument,
    Stale,
    TooLarge,
)
from conveyor.ports.blobs import Blobs
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.quotas import CheckQuota, QuotaDemand, unlimited

LONGEST_SILENCE = timedelta(seconds=60)  # between two parts of an upload

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInputs:
    metadata: Metadata
    blobs: Blobs
    clock: Clock
    ids: Ids
    most_bytes: int
    check_quota: CheckQuota = unlimited

    async def create(self, caller: CallerId, raw: bytes) -> FileInput:
        """Create a file input for a list as the body declares it."""
        spec = parse_spec(raw)
        await self.check_quota(QuotaDemand(caller=caller, file_inputs=1))
        file_input = FileInput(
            id=InputId(self.ids.new()), caller=caller, spec=spec, created_at=self.clock.now()
        )
        await self.metadata.commit(file_input)
        log.info("file_input.created", file_input_id=file_input.id, format=spec.format)
        return file_input

    async def upload(
        self,
        file_input_id: InputId,
        content: AsyncIterable[bytes],
        encodings: Sequence[str],
        *,
        length: int | None,
    ) -> None:
        """Store the file, whole or not at all."""
        file_input = await self._open(file_input_id)
        blob = upload_key(file_input, self.ids.new())
        # Whatever can be refused without reading the upload is refused before it is read.
        file_input_rules.uploaded(file_input, blob, 0, encodings)
        declared_compression(encodings)
        if length is not None and length > self.most_bytes:
            raise self._too_large()
        try:
            length = await self.blobs.put(blob, self._bounded(content, length))
            await self._record(file_input_id, blob, length, encodings)
        except ConveyorError:
            await self._discard(file_input_id, blob)
            raise
        log.info("file_input.uploaded", file_input_id=file_input_id, bytes=length)

    async def _open(self, file_input_id: InputId) -> FileInput:
        file_input = await self.metadata.get(FileInput, file_input_id)
        if file_input is None or not file_input_rules.is_open(file_input, self.clock.now()):
            raise FileInputNotFound("There is no such file input: they expire after a day")
        return file_input

    async def _bounded(
        self, content: AsyncIterable[bytes], declared: int | None
    ) -> AsyncIterator[bytes]:
        length, parts = 0, aiter(content)
        while part := await self._next(parts):
            length += len(part)
            if length > self.most_bytes:
                raise self._too_large()
            yield part
        if declared not in {None, length}:
            raise InvalidArgument(
                f"The upload must have the {declared} bytes that `Content-Length` says, got "
                f"{length}: nothing was stored"
            )

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes:
        """The next part that is not empty; b"" at the end."""
        try:
            async with asyncio.timeout(LONGEST_SILENCE.total_seconds()):
                while (part := await anext(parts, None)) == b"":
                    pass
        except TimeoutError:
            raise InvalidArgument(
                f"No bytes arrived for {LONGEST_SILENCE.seconds} seconds: nothing was stored"
            ) from None
        return part or b""

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"A file must have at most {self.most_bytes} bytes as sent; compress it with gzip or "
            "zstd, or send it in parts, each as a job of its own"
        )

    async def _record(
        self, file_input_id: InputId, blob: str, length: int, encodings: Sequence[str]
    ) -> None:
        while True:
            file_input = await self._open(file_input_id)
            try:
                return await self.metadata.commit(
                    file_input_rules.uploaded(file_input, blob, length, encodings)
                )
            except Stale:
                continue

    async def _discard(self, file_input_id: InputId, blob: str) -> None:
        """Remove an upload that its file input does not name; else the sweeper removes it."""
        try:
            file_input = await self.metadata.get(FileInput, file_input_id)
            if file_input is None or file_input.blob != blob:
                await self.blobs.delete([blob])
        except ConveyorError:
            return
