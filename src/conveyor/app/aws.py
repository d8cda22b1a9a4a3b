"""Tables on DynamoDB: all kinds of state that name the same one share it and its client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from conveyor.adapters.aws.dynamodb.address import FORM, parse_address
from conveyor.adapters.system.clock import SystemClock
from conveyor.app.schemes import Opening, Scheme
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.clock import Clock
from conveyor.settings import Settings

if TYPE_CHECKING:
    from conveyor.adapters.aws.dynamodb.table import DynamoTable

P = TypeVar("P")

SCHEME = "dynamodb:"
CHECKED_WITHIN = 3.0  # seconds


def in_dynamodb(
    open_it: "Callable[[Opening, DynamoTable], P]", *, is_offline: bool = True
) -> Scheme[P]:
    """An engine in a table. `open_it` may import what needs botocore: that is installed then."""

    async def opened(opening: Opening, address: str) -> P:
        return open_it(opening, await opening.once(_table, address))

    return Scheme(
        open=opened,
        is_shared=True,
        is_offline=is_offline,
        takes_queues=True,
        has_queue=False,
        address=lambda address: parse_address(address) is not None,
        form=FORM,
        migrate=_migrate,
        missing=_missing,
    )


@asynccontextmanager
async def _table(opening: Opening, address: str) -> "AsyncIterator[DynamoTable]":
    async with _client(opening.clock, address) as table:
        from conveyor.adapters.aws.dynamodb.setup import check_table  # noqa: PLC0415 - an extra

        # A process starts while DynamoDB does not answer.
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(CHECKED_WITHIN):
                await check_table(table.client, table.name)
        yield table


@asynccontextmanager
async def _client(clock: Clock, address: str) -> "AsyncIterator[DynamoTable]":
    with _installed():
        from conveyor.adapters.aws.client import DYNAMODB, open_client  # noqa: PLC0415 - an extra
        from conveyor.adapters.aws.credentials import RefreshedKeys  # noqa: PLC0415
        from conveyor.adapters.aws.dynamodb.table import DynamoTable  # noqa: PLC0415
        from conveyor.adapters.shared.aws_credentials import (  # noqa: PLC0415
            usual_credentials,
            usual_region,
        )
    parsed = parse_address(address)
    assert parsed, "checked by `check_engines`"
    # In a thread: botocore reads files, and may ask the machine for its role.
    region = parsed.region or await asyncio.to_thread(usual_region, SCHEME)
    keys = await asyncio.to_thread(usual_credentials, SCHEME)
    async with open_client(
        DYNAMODB,
        endpoint=parsed.endpoint,
        region=region,
        keys=RefreshedKeys(keys, clock),
        clock=clock,
    ) as client:
        yield DynamoTable(client, parsed.table)


async def _migrate(_settings: Settings, address: str, _kinds: Sequence[str]) -> Sequence[str]:
    async with _client(SystemClock(), address) as table:
        from conveyor.adapters.aws.dynamodb.setup import set_up_table  # noqa: PLC0415 - an extra

        return await set_up_table(table.client, table.name)


async def _missing(_settings: Settings, address: str) -> Sequence[str]:
    async with _client(SystemClock(), address) as table:
        from conveyor.adapters.aws.dynamodb.setup import check_table  # noqa: PLC0415 - an extra

        try:
            await check_table(table.client, table.name)
        except RefusedToStart as refused:
            return [str(refused)]
        return []


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise RefusedToStart(
            f"settings: {SCHEME} needs botocore: install it with `pip install 'conveyor-batch[aws]'`"
        ) from None
