"""Stage: a slot for a list is given out, and the list is taken in, as a stream.

The list lies whole in storage before the slot says where it is. Of two that come at the same
time for one slot, the first to be whole stays; each has a place of its own until then.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from conveyor.domain import file_input as life
from conveyor.domain.file_input import FileInput, list_blob
from conveyor.domain.ids import CallerId, InputId
from conveyor.domain.list_packing import said_packing
from conveyor.domain.list_spec import parse_spec
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
from conveyor.steps.shared.quotas import Check, Demand, unlimited

LONGEST_SILENCE = timedelta(seconds=60)  # of one who sends a list

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInputs:
    metadata: Metadata
    blobs: Blobs
    clock: Clock
    ids: Ids
    most_bytes: int
    quota: Check = unlimited

    async def slot(self, caller: CallerId, raw: bytes) -> FileInput:
        """Give out a slot for a list that is as the body says."""
        spec = parse_spec(raw)
        await self.quota(Demand(caller=caller, slots=1))
        slot = FileInput(
            id=InputId(self.ids.new()), caller=caller, spec=spec, created_at=self.clock.now()
        )
        await self.metadata.commit(slot)
        log.info("input.slot", input_id=slot.id, kind=spec.kind)
        return slot

    async def fill(
        self,
        slot_id: InputId,
        content: AsyncIterable[bytes],
        encodings: Sequence[str],
        *,
        length: int | None,
    ) -> None:
        """Take a list in, whole or not at all."""
        slot = await self._open_slot(slot_id)
        blob = list_blob(slot, self.ids.new())
        life.filled(slot, blob, 0, encodings)  # before anything is read
        said_packing(encodings)
        if length is not None and length > self.most_bytes:
            raise self._too_large()
        try:
            length = await self.blobs.put(blob, self._bounded(content, length))
            await self._pin(slot_id, blob, length, encodings)
        except ConveyorError:
            await self._forget(slot_id, blob)
            raise
        log.info("input.filled", input_id=slot_id, bytes=length)

    async def _open_slot(self, slot_id: InputId) -> FileInput:
        slot = await self.metadata.get(FileInput, slot_id)
        if slot is None or not life.is_open(slot, self.clock.now()):
            raise FileInputNotFound("No such slot: they last for a day")
        return slot

    async def _bounded(
        self, content: AsyncIterable[bytes], declared: int | None
    ) -> AsyncIterator[bytes]:
        length, chunks = 0, aiter(content)
        while chunk := await self._next(chunks):
            length += len(chunk)
            if length > self.most_bytes:
                raise self._too_large()
            yield chunk
        if declared not in {None, length}:
            raise InvalidArgument(
                f"{length} bytes came of the {declared} that were announced: the list was not taken"
            )

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes:
        """What comes next; nothing at the end."""
        try:
            async with asyncio.timeout(LONGEST_SILENCE.total_seconds()):
                while (chunk := await anext(chunks, None)) == b"":
                    pass
        except TimeoutError:
            raise InvalidArgument(
                f"Nothing came for {LONGEST_SILENCE.seconds} seconds: the list was not taken"
            ) from None
        return chunk or b""

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"A list has at most {self.most_bytes} bytes as it is sent; pack it by gzip or zstd, "
            "or send it in parts, each as a job of its own"
        )

    async def _pin(
        self, slot_id: InputId, blob: str, length: int, encodings: Sequence[str]
    ) -> None:
        while True:
            slot = await self._open_slot(slot_id)
            try:
                return await self.metadata.commit(life.filled(slot, blob, length, encodings))
            except Stale:
                continue

    async def _forget(self, slot_id: InputId, blob: str) -> None:
        """Remove a list that its slot does not name; what cannot be removed the sweeper finds."""
        try:
            slot = await self.metadata.get(FileInput, slot_id)
            if slot is None or slot.blob != blob:
                await self.blobs.delete([blob])
        except ConveyorError:
            return
