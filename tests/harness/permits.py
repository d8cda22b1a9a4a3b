"""Permits of one name, or of one job as the dispatcher names it."""

from collections.abc import Sequence

from conveyor.domain.ids import JobId
from conveyor.ports.coordination import Coordination, PermitRequest
from conveyor.steps.dispatch.permits import permit_name


async def reserve(
    coordination: Coordination, job_id: JobId, *, want: int, cap: int
) -> Sequence[str]:
    return await reserve_named(coordination, permit_name(job_id), want=want, cap=cap)


async def reserve_named(
    coordination: Coordination, name: str, *, want: int, cap: int
) -> Sequence[str]:
    return (await coordination.reserve({name: PermitRequest(want, cap)})).get(name, ())


async def permits_held(coordination: Coordination, job_id: JobId) -> int:
    return await coordination.held(permit_name(job_id))
