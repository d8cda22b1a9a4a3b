"""What runs wait for: the form in which steps that show runs ask for it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.progress import Waiting
from conveyor.domain.run import Run

FindWaits = Callable[[Sequence[tuple[Job, Run]]], Awaitable[Mapping[RunId, Waiting]]]


async def find_no_waits(_runs: Sequence[tuple[Job, Run]]) -> Mapping[RunId, Waiting]:
    """Return no wait, where nothing is dispatched."""
    return {}
