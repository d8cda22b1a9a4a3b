"""The synchronous client behind the signatures of the asynchronous one, for tests of both."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from conveyor.client import Conveyor

END = object()


class InThreads:
    """Runs every call of a `Conveyor` in a thread, and every step of its iterators."""

    def __init__(self, client: Conveyor) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        iterates = inspect.isgeneratorfunction(getattr(Conveyor, name))

        def iterate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            return _stepped(method(*args, **kwargs))

        def wait(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return asyncio.to_thread(method, *args, **kwargs)

        return iterate if iterates else wait


async def _stepped(source: Iterator[Any]) -> AsyncIterator[Any]:
    while (one := await asyncio.to_thread(next, source, END)) is not END:
        yield one
