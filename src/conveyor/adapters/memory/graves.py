"""Buried duties in memory."""

from collections.abc import Sequence

from conveyor.adapters.memory.duties import MemoryDuties
from conveyor.ports.graves import BuriedDuty


class MemoryGraves:
    def __init__(self, duties: MemoryDuties) -> None:
        self._duties = duties

    async def buried(self, *, limit: int, after: str = "") -> Sequence[BuriedDuty]:
        rest = sorted(name for name in self._duties.buried if name > after)
        return [self._duties.buried[name] for name in rest[:limit]]

    async def find(self, duty_id: str) -> BuriedDuty | None:
        return self._duties.buried.get(duty_id)

    async def revive(self, duty_id: str) -> bool:
        is_buried = self._duties.buried.pop(duty_id, None) is not None
        if is_buried:
            await self._duties.send(self._duties.messages.pop(duty_id))
        return is_buried

    async def drop(self, duty_id: str) -> bool:
        return self._duties.buried.pop(duty_id, None) is not None
