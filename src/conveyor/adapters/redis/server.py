"""A Redis or Valkey server, or a cluster of them: bounded calls with a deadline.

Errors of the driver and of the server become `Unavailable` here, and nowhere else.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conveyor.adapters.redis.address import RedisAddress
from conveyor.adapters.redis.nodes import (
    Argument,
    ClusterNodes,
    KeyedCommand,
    Nodes,
    Place,
    SingleNode,
)
from conveyor.adapters.redis.scripts import Script
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

DEADLINE = timedelta(seconds=2)  # of a call; of one connection or response within it, the half
CONNECTIONS = 32  # calls at once; further ones wait
RETRY_AFTER = timedelta(seconds=1)  # a failed call, by calls that can do without the server
QUIET = timedelta(seconds=5)  # without a message, until a subscription is probed
# Errors of a node that does not answer. With any other error it has answered.
SILENT = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)


class Command(NamedTuple):
    """A command or script, and its arguments: first the key, which chooses the node."""

    name: str | Script
    arguments: tuple[Argument, ...]


class RedisServer:
    def __init__(
        self, address: RedisAddress, *, clock: Clock, deadline: timedelta = DEADLINE
    ) -> None:
        self._address = address
        self._clock = clock
        self._deadline = deadline.total_seconds()
        nodes = ClusterNodes if address.cluster else SingleNode
        self._nodes: Nodes = nodes((address.host, address.port), self._connect)
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._retry_at: dict[Place, float] = {}  # of nodes that did not answer

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._nodes.close()

    async def run(
        self, commands: Sequence[Command], *, dispensable: bool = False, optional: int = 0
    ) -> list[Any]:
        """Run commands in one round trip to each node, and return their results.

        The commands for a node run in their order. A dispensable call fails at once while one of its
        nodes is known to be unavailable. If one of the first `optional` commands fails, its error is
        its result.
        """
        places = [self._nodes.place(str(command.arguments[0])) for command in commands]
        if dispensable:
            self._check_retry(places)
        try:
            async with self._reaching(self._deadline), self._turns:
                results = await self._run(commands)
        except Unavailable as failure:
            results = [failure.__cause__] * len(commands)
        for place, result in zip(places, results, strict=True):
            if isinstance(result, SILENT):
                self._retry_at[place] = self._clock.monotonic() + RETRY_AFTER.total_seconds()
            else:
                self._retry_at.pop(place, None)
        if error := _first_error(results):
            await self._nodes.recover(error)
        if error := _first_error(results[optional:]):
            raise self._unavailable(error) from error
        return results

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        results = await self._nodes.send([_by_digest(command) for command in commands])
        # A server that was restarted, or a replica that took over, does not know the scripts.
        unknown = [i for i, result in enumerate(results) if isinstance(result, NoScriptError)]
        if unknown:
            again = await self._nodes.send([_by_source(commands[i]) for i in unknown])
            for i, result in zip(unknown, again, strict=True):
                results[i] = result
        return results

    async def subscribe(self, channels: Sequence[str]) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield an empty message of each channel once its subscription is active, then messages."""
        async with self._reaching(self._deadline):
            client = await self._nodes.subscriber()
        try:
            async with self._reaching(self._deadline):
                subscription = client.pubsub()
                await subscription.subscribe(*channels)
            while True:
                message = await self._next_message(subscription)
                if message["type"] == "subscribe":
                    yield message["channel"].decode(), b""
                elif message["type"] == "message":
                    yield message["channel"].decode(), message["data"]
        finally:
            with suppress(RedisError, OSError):
                await client.aclose()

    async def _next_message(self, subscription: Any) -> Any:
        """Wait for a message. A server that sends none is asked now and then whether it is alive."""
        async with self._reaching(QUIET.total_seconds() + 2 * self._deadline):
            message = await subscription.get_message(timeout=QUIET.total_seconds())
            if message is None:
                await subscription.ping()
                message = await subscription.get_message(timeout=self._deadline)
            if message is None:
                raise TimeoutError
        return message

    @asynccontextmanager
    async def _reaching(self, within: float) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task
        try:
            async with asyncio.timeout(within):
                cancelled = task.cancelling()
                yield
                # redis-py sends with `asyncio.wait_for`, which in Python 3.11 ignores a cancellation
                # that arrives when the send is done (https://github.com/python/cpython/issues/86296).
                if task.cancelling() > cancelled:
                    raise asyncio.CancelledError
        except (RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        why = str(error) or f"no response within {self._deadline:g} s"
        return Unavailable(f"Redis at {self._address} does not answer: {why}")

    def _check_retry(self, places: Sequence[Place]) -> None:
        now = self._clock.monotonic()
        silent = self._retry_at.keys() & set(places)
        if any(now < self._retry_at[place] for place in silent):
            raise Unavailable(f"Redis at {self._address} did not answer a moment ago")
        for place in silent:
            # This call finds out whether it is back; the others need not wait for that.
            self._retry_at[place] = now + self._deadline

    def _connect(self, place: tuple[str, int]) -> "Redis":
        """Return a client, which never repeats a command by itself."""
        address = self._address
        return Redis(
            host=place[0],
            port=place[1],
            db=address.database,
            username=address.username,
            password=address.password,
            protocol=2,  # version 3 would send more commands on every new connection
            retry=Retry(NoBackoff(), 0),
            max_connections=CONNECTIONS,
            socket_connect_timeout=self._deadline / 2,
            socket_timeout=self._deadline / 2,
            ssl=address.tls,
            ssl_ca_certs=address.ca,
        )


def _first_error(results: Sequence[Any]) -> Exception | None:
    return next((result for result in results if isinstance(result, Exception)), None)


def _by_digest(command: Command) -> KeyedCommand:
    name, arguments = command
    words = ("EVALSHA", name.sha, 1) if isinstance(name, Script) else (name,)
    return KeyedCommand(str(arguments[0]), (*words, *arguments))


def _by_source(command: Command) -> KeyedCommand:
    name, arguments = command
    assert isinstance(name, Script)
    return KeyedCommand(str(arguments[0]), ("EVAL", name.source, 1, *arguments))
