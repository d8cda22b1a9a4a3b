"""Permits of one job, as the dispatcher names them."""

from collections.abc import Sequence

from conveyor.domain.ids import JobId
from conveyor.ports.coordination import Coordination, PermitRequest
from conveyor.steps.dispatch.permits import permit_name


async def reserve(
    coordination: Coordination, job_id: JobId, *, want: int, cap: int
) -> Sequence[str]:
    name = permit_name(job_id)
    return (await coordination.reserve({name: PermitRequest(want, cap)}))[name]


async def permits_held(coordination: Coordination, job_id: JobId) -> int:
    return await coordination.held(permit_name(job_id))
