"""Whether the settings connect the service to Step Functions."""

from contextlib import AbstractAsyncContextManager, nullcontext

from conveyor.adapters.aws.step_functions import AwsStepFunctions
from conveyor.ports.step_functions import Answer, RetryLater, StepFunctions
from conveyor.settings import Settings
from conveyor.steps.deliver.channels import CALLBACKS, HEARTBEATS


class Unconnected:
    """Sends nothing: events of a time when the service was connected wait until it is again."""

    async def succeed(self, _token: str, _output: str) -> Answer:
        return UNCONNECTED

    async def fail(self, _token: str, *, error: str, cause: str) -> Answer:
        del error, cause
        return UNCONNECTED

    async def heartbeat(self, _token: str) -> Answer:
        return UNCONNECTED


UNCONNECTED = RetryLater("the setting `step_functions` is empty")


def open_step_functions(settings: Settings) -> AbstractAsyncContextManager[StepFunctions]:
    """Not entered yet."""
    if not settings.step_functions:
        return nullcontext(Unconnected())
    return AwsStepFunctions(threads=CALLBACKS + HEARTBEATS)
