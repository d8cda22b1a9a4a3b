"""Lists in slots, and jobs that read them, as a caller has them."""

import gzip
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from conveyor.domain.ids import CallerId, InputId, JobId, RunId
from conveyor.domain.list_lines import ListLimits
from conveyor.ports.blobs import as_stream
from conveyor.steps.shared.idempotency import Answer, Call
from tests.unit.kit import CALLER, KEY, House, ids_as_answer, ids_in

PIECE = 4


def small_pieces(monkeypatch: pytest.MonkeyPatch, lines: int = PIECE) -> None:
    limits = ListLimits(piece_lines=lines)
    monkeypatch.setattr("conveyor.domain.pinned_reader.LIMITS", limits)


def urls(count: int, *, bad: Iterable[int] = ()) -> bytes:
    """A plain list; some of its lines are no URLs."""
    wrong = set(bad)
    lines = (f"ftp://{n}" if n in wrong else f"https://ok.example/{n}" for n in range(count))
    return "".join(f"{line}\n" for line in lines).encode()


async def a_slot(house: House, kind: str = "txt", **spec: object) -> InputId:
    slot = await house.file_inputs.slot(CALLER, msgspec.json.encode({"type": kind, **spec}))
    return slot.id


async def sent(
    house: House,
    content: bytes,
    kind: str = "txt",
    *,
    encodings: Iterable[str] = (),
    **spec: object,
) -> InputId:
    """A slot with a list in it."""
    slot_id = await a_slot(house, kind, **spec)
    await house.file_inputs.fill(
        slot_id, as_stream([content]), list(encodings), length=len(content)
    )
    return slot_id


async def submit_list(house: House, slot_id: InputId, **given: Any) -> Answer:
    return await house.submit_job.submit(a_list_call(slot_id, **given), ids_as_answer)


async def submitted_list(house: House, content: bytes, **given: object) -> tuple[JobId, RunId]:
    """A job that reads a plain list, which is to be taken in later however short it is."""
    slot_id = await sent(house, content)
    return ids_in(await submit_list(house, slot_id, **{"on_invalid": "skip", **given}))


def a_list_call(
    slot_id: InputId, *, key: str | None = None, caller: CallerId = CALLER, **given: Any
) -> Call:
    raw = msgspec.json.encode({"file_input_id": slot_id, **given})
    return Call(caller=caller, api_key=KEY, raw=raw, fingerprint=raw, idempotency_key=key)


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
