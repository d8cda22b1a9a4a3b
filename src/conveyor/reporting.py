"""Step Functions: whether the settings connect them, and who sends what is owed to their tokens."""

from contextlib import AbstractAsyncContextManager, nullcontext

from conveyor.adapters.aws.step_functions import StepFunctions
from conveyor.operating import Engines
from conveyor.ports.task_tokens import Answer, TaskTokens, Trouble
from conveyor.settings import Settings
from conveyor.steps.report import PLACES, Report


class Unconnected:
    """Tells no token: what is owed from a time when there was a connection waits for the next."""

    async def succeed(self, _token: str, _output: str) -> Answer:
        return UNCONNECTED

    async def fail(self, _token: str, *, error: str, cause: str) -> Answer:
        del error, cause
        return UNCONNECTED

    async def beat(self, _token: str) -> Answer:
        return UNCONNECTED


UNCONNECTED = Trouble("the setting `step_functions` is empty")


def open_task_tokens(settings: Settings) -> AbstractAsyncContextManager[TaskTokens]:
    """The way to the states that wait, not yet entered."""
    if not settings.step_functions:
        return nullcontext(Unconnected())
    return StepFunctions(threads=sum(PLACES.values()))


def wire_report(engines: Engines) -> Report:
    return Report(
        metadata=engines.metadata,
        outbox=engines.outbox,
        sealing=engines.sealing,
        task_tokens=engines.task_tokens,
        clock=engines.clock,
    )
