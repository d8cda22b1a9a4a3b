"""Answers to repeated calls in memory."""

from conveyor.domain.batch import Replay
from conveyor.domain.ids import CallerId
from conveyor.ports.clock import Clock


class MemoryAnswers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._replays: dict[tuple[CallerId, str], Replay] = {}

    async def replay(self, caller: CallerId, key: str) -> Replay | None:
        return self.standing(caller, key)

    async def clear_expired(self, *, limit: int) -> int:
        now = self._clock.now()
        expired = [key for key, replay in self._replays.items() if replay.expires_at <= now]
        for key in expired[:limit]:
            del self._replays[key]
        return len(expired[:limit])

    def standing(self, caller: CallerId, key: str) -> Replay | None:
        replay = self._replays.get((caller, key))
        return replay if replay and replay.expires_at > self._clock.now() else None

    def keep(self, replay: Replay) -> None:
        self._replays[replay.caller, replay.key] = replay
