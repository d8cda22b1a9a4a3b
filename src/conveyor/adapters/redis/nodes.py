"""The nodes behind an address: one server, or a cluster in which each node serves some of the keys.

redis-py has a client for clusters too. It closes connections that other calls are using when one
call fails, and these then end with errors that are no errors of Redis. So commands are sent here to
the node of their key, by plain clients.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, ReadOnlyError, RedisError

Argument = str | bytes | int | float
Place = tuple[str, int]  # host and port
Connect = Callable[[Place], "Redis"]  # without a connection yet


class KeyedCommand(NamedTuple):
    """A command as it is sent, and the key that chooses its node."""

    key: str
    words: tuple[Argument, ...]


class Nodes(Protocol):
    def place(self, key: str) -> Place:
        """Return the node that serves a key, as far as it is known."""
        ...

    async def send(self, commands: Sequence[KeyedCommand]) -> list[Any]:
        """Send commands in one round trip to each node. Errors of commands and nodes are results."""
        ...

    async def recover(self, error: BaseException | None) -> None:
        """Find the nodes again after a call that failed."""
        ...

    async def subscriber(self) -> "Redis":
        """Return a client of its own for a subscription, which the caller closes."""
        ...

    async def close(self) -> None: ...


class SingleNode:
    def __init__(self, place: Place, connect: Connect) -> None:
        self._place, self._connect = place, connect
        self._client = connect(place)

    def place(self, key: str) -> Place:
        del key
        return self._place

    async def send(self, commands: Sequence[KeyedCommand]) -> list[Any]:
        return await _pipeline(self._client, (command.words for command in commands))

    async def recover(self, error: BaseException | None) -> None:
        # The server has become a replica. The name may lead to its successor by now.
        if isinstance(error, ReadOnlyError):
            await _disconnect(self._client)

    async def subscriber(self) -> "Redis":
        return self._connect(self._place)

    async def close(self) -> None:
        await self._client.aclose()


class ClusterNodes:
    def __init__(self, place: Place, connect: Connect) -> None:
        self._place, self._connect = place, connect
        self._clients = {place: connect(place)}
        self._owners: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._is_current = False  # whether `_owners` is what the cluster said last
        self._learning = asyncio.Lock()
        self._turn = 0

    def place(self, key: str) -> Place:
        return self._owners[key_slot(key.encode())] or self._place

    async def send(self, commands: Sequence[KeyedCommand]) -> list[Any]:
        results: list[Any] = [None] * len(commands)
        await self._deliver(commands, results, range(len(commands)))
        moved = [i for i, result in enumerate(results) if isinstance(result, MovedError)]
        if moved:
            self._is_current = False
            await self._deliver(commands, results, moved)
        for i, result in enumerate(results):
            # The key is moving to another node: its present owner says where to ask for it.
            if isinstance(result, AskError) and not isinstance(result, MovedError):
                place = (result.host, result.port)
                answers = await self._try(place, [("ASKING",), commands[i].words])
                results[i] = answers if isinstance(answers, Exception) else answers[1]
        return results

    async def recover(self, error: BaseException | None) -> None:
        del error
        self._is_current = False

    async def subscriber(self) -> "Redis":
        # Any node will do: messages are passed on to all of them.
        await self._learn()
        places = sorted(self._clients)
        self._turn += 1
        return self._connect(places[self._turn % len(places)])

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def _deliver(
        self, commands: Sequence[KeyedCommand], results: list[Any], numbers: Iterable[int]
    ) -> None:
        """Send the commands of these numbers, and fill in their results."""
        await self._learn()
        of_node: dict[Place, list[int]] = defaultdict(list)
        for i in numbers:
            owner = self._owners[key_slot(commands[i].key.encode())]
            if owner is None:
                results[i] = RedisError("no node of the cluster serves the key")
            else:
                of_node[owner].append(i)
        async with asyncio.TaskGroup() as group:
            sending = [
                (node, group.create_task(self._try(place, [commands[i].words for i in node])))
                for place, node in of_node.items()
            ]
        for node, sent in sending:
            answers = sent.result()
            if isinstance(answers, Exception):
                answers = [answers] * len(node)
            for i, answer in zip(node, answers, strict=True):
                results[i] = answer

    async def _try(
        self, place: Place, commands: Sequence[tuple[Argument, ...]]
    ) -> list[Any] | Exception:
        try:
            return await _pipeline(self._client_of(place), commands)
        except (RedisError, OSError) as error:
            return error

    def _client_of(self, place: Place) -> "Redis":
        if place not in self._clients:
            self._clients[place] = self._connect(place)
        return self._clients[place]

    async def _learn(self) -> None:
        """Ask which node serves which keys, if that may have changed."""
        async with self._learning:
            if self._is_current:
                return
            # Begin with another node each time: the last one may be the one that does not answer.
            places = sorted(self._clients)
            self._turn += 1
            first = self._turn % len(places)
            for place in (*places[first:], *places[:first]):
                answers = await self._try(place, [("CLUSTER", "SLOTS")])
                answer = answers if isinstance(answers, Exception) else answers[0]
                if not isinstance(answer, Exception):
                    await self._adopt(answer, asked=place)
                    return
            raise answer

    async def _adopt(self, ranges: Sequence[Any], *, asked: Place) -> None:
        self._owners = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, (host, port, *_), *_replicas in ranges:
            # A node that does not know its own address leaves it out.
            owner = (host.decode() if host else asked[0], port)
            self._owners[first : last + 1] = [owner] * (last + 1 - first)
        self._is_current = True
        # The configured address is kept: its name may lead to nodes that replace all others.
        gone = self._clients.keys() - set(self._owners) - {self._place}
        for place in gone:
            await _disconnect(self._clients.pop(place))


async def _pipeline(client: "Redis", commands: Iterable[tuple[Argument, ...]]) -> list[Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        results: list[Any] = await pipeline.execute(raise_on_error=False)
        return results


async def _disconnect(client: "Redis") -> None:
    """Close idle connections. Those in use end with their call."""
    with suppress(RedisError, OSError):  # what cannot be closed in time is broken anyway
        await client.connection_pool.disconnect(inuse_connections=False)
