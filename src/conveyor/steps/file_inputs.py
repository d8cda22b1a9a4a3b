"""File inputs: create one, and receive its upload as a stream.

The whole file is stored before the row of the file input names it. Each upload has its own key; of
two concurrent ones, the first that is complete stays.

Where the storage signs URLs, the caller uploads the file to it directly, to one key that the storage
writes once. The submit that names the file input then looks whether the file is there.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from msgspec.structs import replace

from conveyor.domain import file_input as file_input_rules
from conveyor.domain.file_input import CONTENT_TYPES, UPLOAD_LIFE, FileInput, upload_key
from conveyor.domain.ids import CallerId, InputId
from conveyor.domain.task_list.decompress import declared_compression
from conveyor.domain.task_list.spec import parse_declaration
from conveyor.errors import ConveyorError, FileInputNotFound, InvalidArgument, Stale
from conveyor.ports.blobs import Blobs, SignedUpload
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

    async def create(self, caller: CallerId, raw: bytes) -> tuple[FileInput, SignedUpload | None]:
        """Create a file input for a list as the body declares it.

        The upload is None if the service itself receives the file.
        """
        spec, size = parse_declaration(raw)
        if size is not None and size > self.most_bytes:
            raise file_input_rules.too_large(self.most_bytes)
        await self.check_quota(QuotaDemand(caller=caller, file_inputs=1))
        file_input = FileInput(
            id=InputId(self.ids.new()),
            caller=caller,
            spec=spec,
            created_at=self.clock.now(),
            size=size,
        )
        target = upload_key(file_input, self.ids.new())
        upload = self.blobs.sign_put(
            target, content_type=CONTENT_TYPES[spec.format], life=UPLOAD_LIFE, length=size
        )
        if upload:
            file_input = replace(file_input, target=target)
        await self.metadata.commit(file_input)
        log.info("file_input.created", file_input_id=file_input.id, format=spec.format)
        return file_input, upload

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
            raise file_input_rules.too_large(self.most_bytes)
        if file_input.size is not None and length not in {None, file_input.size}:
            raise _another_length(file_input.size, length)
        try:
            declared = length if file_input.size is None else file_input.size
            length = await self.blobs.put(blob, self._bounded(content, declared))
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
                raise file_input_rules.too_large(self.most_bytes)
            yield part
        if declared not in {None, length}:
            raise _another_length(declared, length)

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


def _another_length(declared: int | None, length: int | None) -> InvalidArgument:
    return InvalidArgument(
        f"The upload must have the {declared} bytes that were declared, got {length}: nothing was "
        "stored"
    )
