"""What the outside is told: who owes it, and who sends it."""

from conveyor.operating import Stores
from conveyor.steps.complete import Complete
from conveyor.steps.owing import Owing


def wire_complete(stores: Stores) -> Complete:
    return Complete(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        clock=stores.clock,
        owing=Owing(ids=stores.ids),
    )
