"""Create or upgrade what the configured engines need: schemas, buckets and their rules."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence

from conveyor.app.engines import SCHEMES, check_engines
from conveyor.settings import Settings, without_secrets


async def migrate(settings: Settings) -> AsyncIterator[tuple[str, str]]:
    """Migrate each engine once; yield its address and what was done, in words.

    It may be repeated at any time, also while services use the engines.
    """
    for url, kinds in _chosen(settings):
        scheme, _, address = url.partition(":")
        act = SCHEMES[kinds[0]][scheme].migrate
        if act is None:
            continue
        for line in await act(settings, address, kinds):
            yield without_secrets(url.partition("?")[0]), line


async def missing_migrations(settings: Settings) -> AsyncIterator[tuple[str, str]]:
    """Yield the address of each engine whose schema `migrate` would upgrade, and what it lacks."""
    for url, kinds in _chosen(settings):
        scheme, _, address = url.partition(":")
        look = SCHEMES[kinds[0]][scheme].missing
        if look is None:
            continue
        for line in await look(settings, address):
            yield without_secrets(url.partition("?")[0]), line


def _chosen(settings: Settings) -> Iterable[tuple[str, Sequence[str]]]:
    """Each address of an engine, with the kinds of state at it."""
    check_engines(settings)
    chosen = defaultdict[str, list[str]](list)
    for kind in SCHEMES:
        if url := getattr(settings, kind):
            chosen[url].append(kind)
    return chosen.items()
