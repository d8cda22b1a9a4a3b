"""Coordination on Redis or Valkey. `docs/storage/valkey.md` describes the keys."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec

from conveyor.adapters.redis import scripts
from conveyor.adapters.redis.address import RedisAddress
from conveyor.adapters.redis.server import DEADLINE, Command, RedisServer
from conveyor.domain.concurrency import Allowance, allowance
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Member, Notification, PermitRequest

MOST_UNRELEASED = 10_000  # permits; further ones expire
TRY_ALL_AFTER = timedelta(seconds=5)  # overdue releases, with calls for other names
MEMBER = msgspec.json.Decoder(Member)
NAMES = msgspec.json.Decoder(frozenset[str])


@asynccontextmanager
async def open_coordination(
    address: RedisAddress,
    *,
    clock: Clock,
    incarnation: str,
    lease: timedelta,
    deadline: timedelta = DEADLINE,
) -> AsyncIterator["RedisCoordination"]:
    """Open coordination for one process. `incarnation` must be unique over all processes."""
    server = RedisServer(address, clock=clock, deadline=deadline)
    try:
        yield RedisCoordination(
            server, clock=clock, prefix=address.prefix, incarnation=incarnation, lease=lease
        )
    finally:
        await server.close()


class RedisCoordination:
    def __init__(
        self,
        server: RedisServer,
        *,
        clock: Clock,
        prefix: str,
        incarnation: str,
        lease: timedelta,
    ) -> None:
        self._server = server
        self._clock = clock
        self._prefix = prefix
        self._incarnation = incarnation
        self._lease = _milliseconds(lease)
        self._asked = 0  # permits, whether they were granted or not: their numbers
        # Permits that the server may hold although no task uses them: a call that reserved or
        # released them failed, and may have taken effect or not. The next call for the same name
        # releases them, because they would count for a whole lease otherwise. Other calls try it
        # too, but neither fail nor wait for it again and again: the node may be away.
        self._unreleased: dict[str, list[str]] = {}
        self._try_all_at = 0.0

    # Permits.

    async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
        asked: dict[str, Sequence[str]] = {}
        commands: list[Command] = []
        for name, (want, cap) in wants.items():
            if want <= 0:
                continue
            key, prefix, first = self._permits(name), f"{self._incarnation}:", self._asked
            self._asked += want
            asked[name] = [f"{prefix}{number}" for number in range(first, self._asked)]
            commands.append(Command(scripts.RESERVE, (key, self._lease, cap, prefix, first, want)))
        granted = await self._change(commands, asked, asked)
        return {
            name: ids[:count] for (name, ids), count in zip(asked.items(), granted, strict=True)
        }

    async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
        await self._change(
            [
                Command(scripts.RENEW, (self._permits(name), self._lease, *ids))
                for name, ids in permits.items()
                if ids
            ],
            permits,
        )

    async def release(self, permits: Mapping[str, Sequence[str]]) -> None:
        await self._change(self._releases(permits), permits, permits)

    async def held(self, name: str) -> int:
        [live] = await self._server.run([Command(scripts.HELD, (self._permits(name),))])
        return int(live)

    async def _change(
        self,
        commands: Sequence[Command],
        names: Collection[str],
        unused: Mapping[str, Sequence[str]] | None = None,
    ) -> Sequence[Any]:
        """Run commands for `names`, after releases that failed before. If they fail, `unused`
        permits are kept to be released later.
        """
        if not commands:
            return []
        overdue = self._take_overdue(names)
        releases = self._releases(overdue)
        try:
            results = await self._server.run([*releases, *commands], optional=len(releases))
        except BaseException:  # also a cancelled call may reach the server
            self._release_later(overdue)
            self._release_later(unused or {})
            raise
        failed = {
            name: ids
            for (name, ids), result in zip(overdue.items(), results, strict=False)
            if isinstance(result, Exception)
        }
        if failed:
            self._release_later(failed)
            self._try_all_at = self._clock.monotonic() + TRY_ALL_AFTER.total_seconds()
        return results[len(releases) :]

    def _take_overdue(self, names: Collection[str]) -> dict[str, list[str]]:
        """Take the overdue releases to try with a call for `names`."""
        if self._clock.monotonic() >= self._try_all_at:
            overdue, self._unreleased = self._unreleased, {}
            return overdue
        due = [name for name in self._unreleased if name in names]
        return {name: self._unreleased.pop(name) for name in due}

    def _releases(self, permits: Mapping[str, Sequence[str]]) -> list[Command]:
        return [
            Command("ZREM", (self._permits(name), *ids)) for name, ids in permits.items() if ids
        ]

    def _release_later(self, permits: Mapping[str, Sequence[str]]) -> None:
        room = MOST_UNRELEASED - sum(map(len, self._unreleased.values()))
        for name, ids in permits.items():
            if kept := ids[:room]:
                self._unreleased.setdefault(name, []).extend(kept)
                room -= len(kept)

    # Rate limits and the cache. Their callers can do without them, and do not wait for an engine
    # that is known to be unavailable.

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        command = Command(scripts.TAKE, (self._key("bucket", bucket), rate, burst))
        [[granted, tokens]] = await self._server.run([command], dispensable=True)
        return allowance(float(tokens), granted=bool(granted), rate=rate, burst=burst)

    async def recall(self, names: Collection[str]) -> Mapping[str, bytes]:
        if not names:
            return {}
        commands = [Command("GET", (self._key("cache", name),)) for name in names]
        values = await self._server.run(commands, dispensable=True)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    async def remember(self, values: Mapping[str, bytes], *, life: timedelta) -> None:
        if not values:
            return
        expiry = max(_milliseconds(life), 1)
        commands = [
            Command("SET", (self._key("cache", name), value, "PX", expiry))
            for name, value in values.items()
        ]
        await self._server.run(commands, dispensable=True)

    # Notifications.

    async def notify(self, topic: str, names: Collection[str] = ()) -> None:
        command = Command("PUBLISH", (self._channel(topic), msgspec.json.encode(list(names))))
        await self._server.run([command], dispensable=True)

    async def notifications(self, topics: Collection[str]) -> AsyncGenerator[Notification, None]:
        topic_of = {self._channel(topic): topic for topic in topics}
        async with aclosing(self._server.subscribe(list(topic_of))) as messages:
            async for channel, content in messages:
                try:
                    names = NAMES.decode(content) if content else None
                except msgspec.DecodeError:  # of a later version: anything may have changed
                    names = None
                yield Notification(topic_of[channel], names)

    # Members.

    async def announce(self, member: Member, *, life: timedelta) -> None:
        document = msgspec.json.encode(member)
        arguments = (self._members, _milliseconds(life), member.id, document)
        await self._server.run([Command(scripts.ANNOUNCE, arguments)])

    async def members(self) -> Sequence[Member]:
        [entries] = await self._server.run([Command(scripts.MEMBERS, (self._members,))])
        found = [MEMBER.decode(entry.partition(b" ")[2]) for entry in entries]
        return sorted(found, key=lambda member: member.id)

    # Keys.

    def _permits(self, name: str) -> str:
        # The braces choose the slot of a cluster: keys of one name are on one node.
        return f"{self._prefix}:permits:{{{name}}}"

    @property
    def _members(self) -> str:
        return f"{self._prefix}:members"

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}:{kind}:{name}"

    def _channel(self, topic: str) -> str:
        return self._key("notify", topic)


def _milliseconds(duration: timedelta) -> int:
    return math.ceil(duration / timedelta(milliseconds=1))
