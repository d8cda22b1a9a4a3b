"""Limits that all processes share: what each learns of gateway keys and of the gateway.

How many calls of a key are under way over all processes is counted by permits (`permits`). What the
limit is, whether a key cools down or is refused, and whether the gateway is unavailable, each process
learns from its own calls. It writes that to a record in the cache of coordination, and notifies the
others, which read the record and act as if they had learned it themselves. The record of the storage
is shown to callers only.

| record | when it is written | when it is read |
|---|---|---|
| `key:<digest>` | something was learned that keeps calls from starting, or lets them; the limit grew by a quarter | notified; a run with the key joins; every second while calls of it are under way, else every 10 s, also for a minute after a caller polled a run with it |
| `gateway` | the breaker opened or closed, a probe starts; a record says that it is open, and a call was answered since | notified; every second; before a probe |
| `storage` | a page could not be stored; the record says so, and one was stored | notified; every second |

| invariant | kept by |
|---|---|
| all processes end with the record of the highest version, also if an older one was written over it | `_adopt`, which writes it again |
| a record that the engine lost is written again while it is in use | `look` |
| without coordination each process decides for itself | `run`, which only waits |
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import structlog

from conveyor.domain.breaker import RefusedGatewayKeys
from conveyor.domain.concurrency import ConcurrencyLimiter
from conveyor.domain.progress import Waiting
from conveyor.domain.shared_limits import (
    GatewayKeyRecord,
    GatewayRecord,
    SharedRecord,
    StorageRecord,
    key_record,
    limiter_of,
)
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination
from conveyor.steps.dispatch.active_run import InFlight
from conveyor.steps.dispatch.gateway_health import Finished, GatewayHealth
from conveyor.steps.dispatch.gateway_keys import GatewayKeyState
from conveyor.steps.dispatch.permits import Permits, key_permit_name
from conveyor.steps.dispatch.storage_pause import StoragePause

TOPIC = "limits"
GATEWAY = "gateway"
STORAGE = "storage"
TICK = timedelta(seconds=1)
ALL_EVERY = 10.0  # seconds between reads of the records of all keys
RECORD_LIFE = timedelta(hours=1)
REFRESH_AFTER = RECORD_LIFE.total_seconds() / 2  # seconds, of a record that is in use
MOST_COUNTED = 100  # keys whose calls in other processes are counted in a tick
MOST_KNOWN = 10_000  # records of keys that no run uses; the oldest are forgotten
FOLLOWED_FOR = 60.0  # seconds after a caller polled a run with the key
MOST_FOLLOWED = 10_000  # keys
UNAVAILABLE_WAIT = 1.0  # seconds

KEY_DECODER = msgspec.json.Decoder(GatewayKeyRecord)
DECODERS: Mapping[
    str, msgspec.json.Decoder[GatewayRecord] | msgspec.json.Decoder[StorageRecord]
] = {
    GATEWAY: msgspec.json.Decoder(GatewayRecord),
    STORAGE: msgspec.json.Decoder(StorageRecord),
}

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class SharedLimits:
    coordination: Coordination
    clock: Clock
    writer: str  # this process
    refused_keys: RefusedGatewayKeys
    health: GatewayHealth
    storage: StoragePause
    permits: Permits
    key_states: Callable[[], Mapping[str, GatewayKeyState]]
    inflight: Callable[[], Iterable[InFlight]]
    settle_soon: Callable[[list[Finished]], None]
    on_change: Callable[[], None]  # calls may start that could not before
    records: dict[str, SharedRecord] = field(default_factory=dict)  # as last read or written
    written_at: dict[str, float] = field(default_factory=dict)
    lessons: set[str] = field(default_factory=set)  # names of records to write again
    unread: set[str] = field(default_factory=set)  # of which a notification came
    # Names of keys of runs that callers polled and another process serves, and until when.
    followed: dict[str, float] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    tick_at: float = 0.0  # when records are read although no notification came
    all_at: float = 0.0  # when all records are read again
    counted: int = 0  # keys so far, for taking turns

    def learned(self, name: str) -> None:
        """Something was learned that other processes must know."""
        self.lessons.add(name)
        self.woken.set()

    async def run(self) -> None:
        """Exchange records until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="limits listen")
            while True:
                self.woken.clear()
                try:
                    await self.exchange()
                    if self.clock.monotonic() >= self.tick_at:
                        await self._tick()
                except Unavailable:
                    await asyncio.sleep(UNAVAILABLE_WAIT)
                    continue
                except Exception:
                    log.exception("step.bug", step="shared limits")  # the next round may succeed
                    await asyncio.sleep(UNAVAILABLE_WAIT)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.tick_at - self.clock.monotonic()):
                        await self.woken.wait()

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self.coordination.notifications([TOPIC])) as notifications:
                    async for notification in notifications:
                        names = self._in_use()
                        if notification.names is not None:
                            names &= notification.names
                        if names:
                            self.unread |= names
                            self.woken.set()
            except Unavailable:
                await asyncio.sleep(UNAVAILABLE_WAIT)
            except Exception:
                log.exception("step.bug", step="shared limits")  # the dispatcher polls meanwhile
                await asyncio.sleep(UNAVAILABLE_WAIT)

    async def _tick(self) -> None:
        """Read what notifications may have missed, and count the calls of other processes."""
        now = self.clock.monotonic()
        self.tick_at = now + TICK.total_seconds()
        busy = [state for state in self.key_states().values() if state.limiter.under_way]
        self.unread |= {key_permit_name(state.digest) for state in busy} | DECODERS.keys()
        if now >= self.all_at:
            self.all_at = now + ALL_EVERY
            self.followed = {name: until for name, until in self.followed.items() if until > now}
            self.unread |= self._in_use()
        self.woken.set()
        await self._count_elsewhere(busy)

    async def exchange(self) -> None:
        """Read the records that may have changed, and write what was learned here."""
        unread, self.unread = self.unread, set()
        try:
            await self.look(unread & self._in_use())
            await self._write()
        except Unavailable:
            self.unread |= unread
            raise

    async def look(self, names: Collection[str]) -> None:
        """Read records, and act on those that are new."""
        if not names:
            return
        values = await self.coordination.recall(names)
        for name in names:
            if (value := values.get(name)) is not None:
                await self._adopt(name, value)
            elif name in self.records:  # the engine lost it
                self.written_at.pop(name, None)

    async def look_at_key(self, digest: str) -> None:
        """Read what is known of a gateway key. Without coordination nothing new is."""
        try:
            await self.look([key_permit_name(digest)])
        except Unavailable:
            return

    def tried_storage(self, *, stored: bool) -> None:
        """Pages could or could not be stored."""
        if not stored or self.storage_wait():
            self.learned(STORAGE)

    # For callers that poll runs.

    async def follow_keys(self, digests: Collection[str]) -> None:
        """Keep the records of keys at hand, because callers poll runs with them."""
        names = set(map(key_permit_name, digests))
        new = names - self.followed.keys()
        if len(self.followed) + len(new) > MOST_FOLLOWED:
            self.followed.clear()
        until = self.clock.monotonic() + FOLLOWED_FOR
        self.followed |= dict.fromkeys(names, until)
        with suppress(Unavailable):  # read as soon as coordination answers
            await self.look(new)

    def key_wait(self, digest: str) -> Waiting | None:
        """What runs with a key that is followed wait for, because it is refused."""
        record = self.records.get(key_permit_name(digest))
        return record.waiting(self.clock.now()) if isinstance(record, GatewayKeyRecord) else None

    def storage_wait(self) -> Waiting | None:
        """What runs wait for while no process could store a page."""
        record = self.records.get(STORAGE)
        return record.waiting(self.clock.now()) if isinstance(record, StorageRecord) else None

    async def share_key(self, digest: str) -> None:
        """Write what a check of a key has shown."""
        self.lessons.add(key_permit_name(digest))
        try:
            await self._write()
        except Unavailable:
            return

    # Records.

    async def _adopt(self, name: str, value: bytes) -> None:
        try:
            record: SharedRecord = DECODERS.get(name, KEY_DECODER).decode(value)
        except msgspec.DecodeError:  # of another version of the program
            return
        known = self.records.get(name)
        if known is not None and record.version < known.version:
            self.written_at.pop(name, None)  # an older one was written over it: write it again
            return
        if name in self.lessons and known is not None and record.version == known.version:
            return  # what was learned since is written next
        self._keep(name, record)
        if isinstance(record, GatewayRecord):
            if known is None or record.version > known.version:
                self._adopt_gateway(record)
        elif isinstance(record, GatewayKeyRecord):
            is_new = known is None or record.version > known.version
            await self._adopt_key(_digest(name), record, is_new=is_new)

    def _adopt_gateway(self, record: GatewayRecord) -> None:
        self.lessons.discard(GATEWAY)
        self.settle_soon(self.health.adopt(record))
        self.on_change()

    async def _adopt_key(self, digest: str, record: GatewayKeyRecord, *, is_new: bool) -> None:
        now, date = self.clock.monotonic(), self.clock.now()
        state = self.key_states().get(digest)
        if not is_new:
            if state and state.limiter.limit < min(record.limit, state.limiter.ceiling):
                state.limiter.limit = min(record.limit, state.limiter.ceiling)
                self._wake_runs(state)
            return
        self.lessons.discard(key_permit_name(digest))
        was_refused = self.refused_keys.known.pop(digest, None)
        if record.refusal:
            self.refused_keys.known[digest] = record.refusal.known(now, date)
        if state is None:
            return
        cap = state.limiter.cap
        record.apply(state.limiter, now, date)
        if was_refused and not record.refusal:
            # Refusals of calls that are still under way are older than what the other process saw.
            state.limiter.served_from = now
        if state.limiter.cap < cap or state.limiter.closed_until > now:
            await self._give_up_idle(state)
        self._wake_runs(state)

    def _wake_runs(self, state: GatewayKeyState) -> None:
        """Let runs of a key that rested without a permit look for one at once."""
        if state.permits is not None:
            state.permits.full_until = 0.0
        for run in self.permits.runs.values():
            if run.key_state is state:
                run.idle_until = run.idle = 0.0
        self.on_change()

    async def _give_up_idle(self, state: GatewayKeyState) -> None:
        """Let calls begin only with new permits: more than the limit may be under way."""
        if state.permits is not None:
            state.permits.must_reserve = True
        await self.permits.release_idle(
            [run for run in self.permits.runs.values() if run.key_state is state]
        )

    async def _write(self) -> None:
        lessons, self.lessons = self.lessons, set()
        written = {name: self._next_record(name) for name in lessons}
        for name in self._in_use() - lessons:
            if record := self._again(name):
                written[name] = record
        if not written:
            return
        for name, record in written.items():
            self._keep(name, record)
        try:
            values = {name: msgspec.json.encode(record) for name, record in written.items()}
            await self.coordination.remember(values, life=RECORD_LIFE)
            await self.coordination.notify(TOPIC, list(written))
        except Unavailable:
            for name in written:
                self.written_at.pop(name, None)
            raise
        for state in map(self._state, lessons):
            if state and state.permits is not None and state.permits.must_reserve:
                await self._give_up_idle(state)

    def _again(self, name: str) -> SharedRecord | None:
        """The record of a name, if it must be written although nothing was learned."""
        record, state = self.records.get(name), self._state(name)
        if state and state.permits and state.limiter.limit >= state.permits.worth_sharing:
            version = record.version if record else (0, self.writer)
            return self._key_record(state.limiter, state.digest, version)
        written_at = self.written_at.get(name, -REFRESH_AFTER)
        return record if self.clock.monotonic() - written_at >= REFRESH_AFTER else None

    def _next_record(self, name: str) -> SharedRecord:
        known = self.records.get(name)
        version = (known.number + 1 if known else 1, self.writer)
        if name == GATEWAY:
            return self.health.record(version)
        if name == STORAGE:
            return self.storage.record(version)
        digest, state = _digest(name), self._state(name)
        if state:
            return self._key_record(state.limiter, digest, version)
        assert known is None or isinstance(known, GatewayKeyRecord)
        now, date = self.clock.monotonic(), self.clock.now()
        limiter = limiter_of(known, self.refused_keys.get(digest), now, date)
        return self._key_record(limiter, digest, version)

    def _key_record(
        self, limiter: ConcurrencyLimiter, digest: str, version: tuple[int, str]
    ) -> GatewayKeyRecord:
        return key_record(
            limiter,
            self.refused_keys.get(digest),
            version=version,
            now=self.clock.monotonic(),
            date=self.clock.now(),
        )

    def _state(self, name: str) -> GatewayKeyState | None:
        return self.key_states().get(_digest(name))

    def _keep(self, name: str, record: SharedRecord) -> None:
        self.records[name] = record
        if isinstance(record, GatewayKeyRecord) and (state := self._state(name)) and state.permits:
            state.permits.limit_shared = record.limit
        self.written_at[name] = self.clock.monotonic()
        if len(self.records) > MOST_KNOWN:
            in_use = self._in_use()
            for old in [each for each in self.records if each not in in_use]:
                del self.records[old]
                self.written_at.pop(old, None)

    def _in_use(self) -> set[str]:
        return {*DECODERS, *self.followed, *map(key_permit_name, self.key_states())}

    # Calls of other processes.

    async def _count_elsewhere(self, busy: list[GatewayKeyState]) -> None:
        """Count the calls of other processes with the keys that this one uses, some in a tick."""
        first = self.counted % len(busy) if len(busy) > MOST_COUNTED else 0
        turn = (busy[first:] + busy[:first])[:MOST_COUNTED]
        self.counted += len(turn)
        own: Counter[GatewayKeyState] = Counter(
            entry.run.key_state for entry in self.inflight() if entry.key_permit
        )
        async with asyncio.TaskGroup() as group:
            counts = [(state, group.create_task(self._held(state))) for state in turn]
        for state, count in counts:
            idle = len(state.permits.idle) if state.permits is not None else 0
            if (held := count.result()) is not None:
                state.limiter.elsewhere = max(held - own[state] - idle, 0)

    async def _held(self, state: GatewayKeyState) -> int | None:
        try:
            return await self.coordination.held(key_permit_name(state.digest))
        except Unavailable:
            return None


def _digest(name: str) -> str:
    return name.removeprefix(key_permit_name(""))
