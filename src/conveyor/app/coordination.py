"""Engines of coordination."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.redis.address import FORM, is_address, parse_address
from conveyor.app.aws import in_dynamodb
from conveyor.app.postgres import on_postgres, postgres_engine
from conveyor.app.schemes import Opening, Scheme
from conveyor.errors import RefusedToStart
from conveyor.ports.coordination import Coordination

if TYPE_CHECKING:
    from conveyor.adapters.aws.dynamodb.table import DynamoTable


async def _memory(opening: Opening, _address: str) -> Coordination:
    return MemoryCoordination(opening.clock, lease=opening.settings.permit_lease)


def _redis(scheme: str) -> Scheme[Coordination]:
    """Return the engine on Redis or Valkey. It connects when it is first used, not at the start."""

    async def open_it(opening: Opening, address: str) -> Coordination:
        try:
            from conveyor.adapters.redis.coordination import open_coordination  # noqa: PLC0415
        except ImportError:
            raise RefusedToStart(
                f"settings: 'coordination' is on {scheme}:, which needs redis-py: install it with "
                "`pip install 'conveyor-batch[redis]'`"
            ) from None
        coordination = open_coordination(
            parse_address(f"{scheme}:{address}"),
            clock=opening.clock,
            incarnation=opening.incarnation,
            lease=opening.settings.permit_lease,
        )
        return await opening.stack.enter_async_context(coordination)

    return Scheme(
        open=open_it,
        is_shared=True,
        is_offline=False,
        address=lambda address: is_address(f"{scheme}:{address}"),
        form=FORM,
    )


def _dynamodb(opening: Opening, table: "DynamoTable") -> Coordination:
    from conveyor.adapters.aws.dynamodb.coordination import (  # noqa: PLC0415 - an extra
        DynamoDbCoordination,
    )

    return DynamoDbCoordination(
        table,
        clock=opening.clock,
        incarnation=opening.incarnation,
        lease=opening.settings.permit_lease,
    )


async def _postgres(opening: Opening, address: str) -> Coordination:
    database = (await opening.once(postgres_engine, address)).database
    from conveyor.adapters.postgres.coordination import (  # noqa: PLC0415 - an extra
        PostgresCoordination,
    )

    return PostgresCoordination(
        database,
        monotonic=opening.clock,
        incarnation=opening.incarnation,
        lease=opening.settings.permit_lease,
    )


COORDINATION: Mapping[str, Scheme[Coordination]] = {
    "memory": Scheme(open=_memory, is_offline=False, in_memory=True),
    "redis": _redis("redis"),
    "rediss": _redis("rediss"),
    "postgresql": on_postgres(_postgres, is_offline=False),
    "dynamodb": in_dynamodb(_dynamodb, is_offline=False),
}
