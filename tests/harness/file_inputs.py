"""Lists in slots, and jobs that read them, as a caller has them."""

import gzip
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from conveyor.domain.ids import CallerId, InputId, JobId, RunId
from conveyor.domain.task_list.rows import ReaderLimits
from conveyor.ports.blobs import as_stream
from conveyor.steps.shared.idempotency import Answer, Call
from tests.harness.memory_service import CALLER, KEY, House, ids_as_answer, ids_in, sized

CHUNK_LINES = 4


def small_chunks(monkeypatch: pytest.MonkeyPatch, lines: int = CHUNK_LINES) -> None:
    sized(monkeypatch, reader=ReaderLimits(chunk_lines=lines))


def urls(count: int, *, bad: Iterable[int] = ()) -> bytes:
    """A plain list; some of its lines are no URLs."""
    wrong = set(bad)
    lines = (f"ftp://{n}" if n in wrong else f"https://ok.example/{n}" for n in range(count))
    return "".join(f"{line}\n" for line in lines).encode()


async def a_file_input_id(house: House, kind: str = "txt", **spec: object) -> InputId:
    file_input, _ = await house.file_inputs.create(
        CALLER, msgspec.json.encode({"type": kind, **spec})
    )
    return file_input.id


async def sent(
    house: House,
    content: bytes,
    kind: str = "txt",
    *,
    encodings: Iterable[str] = (),
    **spec: object,
) -> InputId:
    """A file input with a list in it."""
    file_input_id = await a_file_input_id(house, kind, **spec)
    await house.file_inputs.upload(
        file_input_id, as_stream([content]), list(encodings), length=len(content)
    )
    return file_input_id


async def submit_list(house: House, input_id: InputId, /, **given: Any) -> Answer:
    return await house.submit_job.submit(a_list_call(input_id, **given), ids_as_answer)


async def submitted_list(house: House, content: bytes, **given: object) -> tuple[JobId, RunId]:
    """A job that reads a plain list, which is to be taken in later however short it is."""
    file_input_id = await sent(house, content)
    return ids_in(await submit_list(house, file_input_id, **{"on_invalid": "skip", **given}))


def a_list_call(
    input_id: InputId, /, *, key: str | None = None, caller: CallerId = CALLER, **given: Any
) -> Call:
    raw = msgspec.json.encode({"file_input_id": input_id, **given})
    return Call(caller=caller, gateway_key=KEY, raw=raw, fingerprint=raw, idempotency_key=key)


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
