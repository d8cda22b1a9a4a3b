"""Databases on PostgreSQL: all kinds of state that name the same one share it and its connections."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from conveyor.adapters.postgres.address import FORM, is_address, parse_address
from conveyor.app.schemes import Opening, Scheme
from conveyor.errors import RefusedToStart
from conveyor.settings import Settings

if TYPE_CHECKING:
    from conveyor.adapters.postgres.engine import PostgresEngine

P = TypeVar("P")


def on_postgres(
    open_it: Callable[[Opening, str], Awaitable[P]], *, is_offline: bool = True
) -> Scheme[P]:
    """An engine on PostgreSQL. It connects when it is first used."""
    return Scheme(
        open=open_it,
        is_shared=True,
        is_offline=is_offline,
        address=lambda address: is_address(f"postgresql:{address}"),
        form=FORM,
        migrate=_migrate,
        missing=_missing,
    )


def postgres_engine(
    opening: Opening, address: str
) -> AbstractAsyncContextManager["PostgresEngine"]:
    with _installed():
        from conveyor.adapters.postgres.engine import open_engine as open_postgres  # noqa: PLC0415
    return open_postgres(
        parse_address(f"postgresql:{address}"),
        ids=opening.ids,
        lease=opening.settings.lease,
        holder=opening.incarnation,
        writable=opening.writable,
    )


async def _migrate(_settings: Settings, address: str, _kinds: Sequence[str]) -> Sequence[str]:
    with _installed():
        from conveyor.adapters.postgres.schema import migrate_at  # noqa: PLC0415
    done = await migrate_at(parse_address(f"postgresql:{address}"))
    return [f"upgraded to schema {done[-1]}" if done else "has the latest schema"]


async def _missing(_settings: Settings, address: str) -> Sequence[str]:
    with _installed():
        from conveyor.adapters.postgres.schema import missing_at  # noqa: PLC0415
    missing = await missing_at(parse_address(f"postgresql:{address}"))
    return [f"lacks schema {version}" for version in missing]


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise RefusedToStart(
            "settings: an engine is on postgresql:, which needs asyncpg: install it with "
            "`pip install 'conveyor-batch[postgres]'`"
        ) from None
