"""Step Functions: whether the settings connect them, and who sends what is owed to their tokens."""

from contextlib import AbstractAsyncContextManager, nullcontext

from conveyor.adapters.aws.step_functions import AwsStepFunctions
from conveyor.operating import Engines
from conveyor.ports.step_functions import Answer, RetryLater, StepFunctions
from conveyor.settings import Settings
from conveyor.steps.report import PLACES, Report


class Unconnected:
    """Tells no token: what is owed from a time when there was a connection waits for the next."""

    async def succeed(self, _token: str, _output: str) -> Answer:
        return UNCONNECTED

    async def fail(self, _token: str, *, error: str, cause: str) -> Answer:
        del error, cause
        return UNCONNECTED

    async def heartbeat(self, _token: str) -> Answer:
        return UNCONNECTED


UNCONNECTED = RetryLater("the setting `step_functions` is empty")


def open_step_functions(settings: Settings) -> AbstractAsyncContextManager[StepFunctions]:
    """The way to the states that wait, not yet entered."""
    if not settings.step_functions:
        return nullcontext(Unconnected())
    return AwsStepFunctions(threads=sum(PLACES.values()))


def wire_report(engines: Engines) -> Report:
    return Report(
        metadata=engines.metadata,
        encryption=engines.encryption,
        step_functions=engines.step_functions,
        clock=engines.clock,
    )
