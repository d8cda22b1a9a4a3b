"""Credentials for requests, refreshed before they expire and never on the event loop."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from botocore.exceptions import BotoCoreError

from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

# botocore refreshes credentials from 15 minutes before their end on, when it is asked for them.
REFRESH = timedelta(minutes=14)
# After a refresh that failed, or brought nothing new.
ASK_AGAIN = 30.0  # seconds
LAST_USE = timedelta(seconds=30)  # before their end: a request may be on its way for so long


class RefreshedKeys:
    """The current credentials of a source such as `usual_credentials`."""

    def __init__(self, source: Callable[[], Keys], clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._known: Keys | None = None
        self._asked = 0.0  # by monotonic time
        self._lock = asyncio.Lock()

    async def current(self) -> Keys:
        """Return valid credentials. `Unavailable` if there are none."""
        if self._known is not None and not self._is_due(self._known):
            return self._known
        async with self._lock:  # one refresh serves all calls that wait for it
            if self._known is None or self._is_due(self._known):
                await self._refresh()
            assert self._known is not None
            return self._known

    def discard(self) -> None:
        """Ask the source again: AWS says that the credentials have expired."""
        self._known = None

    async def _refresh(self) -> None:
        self._asked = self._clock.monotonic()
        try:
            self._known = await asyncio.to_thread(self._source)
        except (BotoCoreError, RuntimeError) as error:  # the latter if a refresh came too late
            if self._known is None or self._ends_within(self._known, LAST_USE):
                raise Unavailable(f"there are no AWS credentials: {error}") from error

    def _is_due(self, keys: Keys) -> bool:
        if not self._ends_within(keys, REFRESH):
            return False
        waited = self._clock.monotonic() - self._asked
        return waited >= ASK_AGAIN or self._ends_within(keys, LAST_USE)

    def _ends_within(self, keys: Keys, time: timedelta) -> bool:
        return keys.expires_at is not None and keys.expires_at < self._clock.now() + time
