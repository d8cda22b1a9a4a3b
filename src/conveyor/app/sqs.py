"""Engines of queues on SQS."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from conveyor.adapters.aws.sqs.address import FORM, SqsAddress, parse_address
from conveyor.adapters.system.clock import SystemClock
from conveyor.app.schemes import Opening, QueueEngine, Scheme
from conveyor.domain.batch import INGEST
from conveyor.domain.export import EXPORT
from conveyor.domain.job import PURGE
from conveyor.errors import RefusedToStart
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import ControlQueue
from conveyor.settings import Settings

if TYPE_CHECKING:
    from conveyor.adapters.aws.sqs.calls import SqsCalls
    from conveyor.adapters.aws.sqs.control_records import ControlRecords

KINDS = (INGEST, PURGE, EXPORT)  # of control messages: each has a queue
# A message is hidden for so much longer than a lease. Its row is due again first, so that the next
# delivery of a message whose worker died finds the task due.
HIDDEN_LONGER = timedelta(seconds=10)


def visibility_for(lease: timedelta) -> timedelta:
    return lease + HIDDEN_LONGER


class _Clients(NamedTuple):
    address: SqsAddress
    calls: "SqsCalls"
    records: "ControlRecords"


@asynccontextmanager
async def _clients(clock: Clock, text: str) -> AsyncIterator[_Clients]:
    try:
        from conveyor.adapters.aws.client import (  # noqa: PLC0415 - an extra
            DYNAMODB,
            SQS,
            open_client,
        )
        from conveyor.adapters.aws.credentials import RefreshedKeys  # noqa: PLC0415
        from conveyor.adapters.aws.sqs.calls import SqsCalls  # noqa: PLC0415
        from conveyor.adapters.aws.sqs.control_records import ControlRecords  # noqa: PLC0415
        from conveyor.adapters.shared.aws_credentials import (  # noqa: PLC0415
            usual_credentials,
            usual_region,
        )
    except ImportError:
        raise RefusedToStart(
            "settings: sqs: needs botocore: install it with `pip install 'conveyor-batch[aws]'`"
        ) from None
    address = parse_address(text)
    assert address, "checked by `check_engines`"
    region = address.region or await asyncio.to_thread(usual_region, "sqs:")
    keys = RefreshedKeys(await asyncio.to_thread(usual_credentials, "sqs:"), clock)
    async with (
        open_client(SQS, endpoint=address.endpoint, region=region, keys=keys, clock=clock) as sqs,
        open_client(
            DYNAMODB, endpoint=address.table_endpoint, region=region, keys=keys, clock=clock
        ) as dynamodb,
    ):
        yield _Clients(address, SqsCalls(sqs), ControlRecords(dynamodb, address.table))


@asynccontextmanager
async def _opened(opening: Opening, text: str) -> AsyncIterator[_Clients]:
    async with _clients(opening.clock, text) as clients:
        yield clients


async def _queues(opening: Opening, text: str) -> QueueEngine:
    clients = await opening.once(_opened, text)
    from conveyor.adapters.aws.sqs.queues import open_queues  # noqa: PLC0415 - an extra

    visibility = visibility_for(opening.settings.lease)
    opened = open_queues(clients.calls, clients.address, opening.clock, visibility=visibility)
    queues = await opening.stack.enter_async_context(opened)
    return QueueEngine(queues, visibility, is_billed=True)


async def _control_queue(opening: Opening, text: str) -> ControlQueue:
    address, calls, records = await opening.once(_opened, text)
    from conveyor.adapters.aws.sqs.control_messages import PointerQueues  # noqa: PLC0415
    from conveyor.adapters.aws.sqs.control_queue import open_control_queue  # noqa: PLC0415

    messages = PointerQueues(calls, address, opening.clock, kinds=KINDS)
    opened = open_control_queue(messages, records, opening.clock, opening.ids)
    return await opening.stack.enter_async_context(opened)


async def _migrate(_settings: Settings, text: str, kinds: Sequence[str]) -> Sequence[str]:
    async with _clients(SystemClock(), text) as (address, calls, records):
        from conveyor.adapters.aws.sqs.setup import set_up_queues  # noqa: PLC0415 - an extra

        is_control = "control_queue" in kinds
        done = await set_up_queues(calls, address, KINDS if is_control else None)
        return [*done, *([await records.set_up()] if is_control else [])]


def _is_address(text: str) -> bool:
    return parse_address(text) is not None


SQS_QUEUES: Scheme[QueueEngine] = Scheme(
    open=_queues,
    is_shared=True,
    address=_is_address,
    form=FORM,
    migrate=_migrate,
)
SQS_CONTROL_QUEUE: Scheme[ControlQueue] = Scheme(
    open=_control_queue, is_shared=True, address=_is_address, form=FORM, migrate=_migrate
)
