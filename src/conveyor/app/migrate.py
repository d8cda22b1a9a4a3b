"""Create or upgrade what the configured engines need: schemas, buckets and their rules."""

from collections import defaultdict
from collections.abc import AsyncIterator

from conveyor.app.engines import SCHEMES, check_engines
from conveyor.settings import Settings, without_secrets


async def migrate(settings: Settings) -> AsyncIterator[tuple[str, str]]:
    """Migrate each engine once; yield its address and what was done, in words.

    It may be repeated at any time, also while services use the engines.
    """
    check_engines(settings)
    chosen = defaultdict[str, list[str]](list)
    for kind in SCHEMES:
        if url := getattr(settings, kind):
            chosen[url].append(kind)
    for url, kinds in chosen.items():
        scheme, _, address = url.partition(":")
        act = SCHEMES[kinds[0]][scheme].migrate
        if act is None:
            continue
        for line in await act(settings, address, kinds):
            yield without_secrets(url.partition("?")[0]), line
