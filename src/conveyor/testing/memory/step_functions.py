"""Step Functions in memory, for tests."""

from conveyor.ports.step_functions import CallbackResult, Sent, TaskClosed

CLOSED = TaskClosed("TaskTimedOut")


class MemoryStepFunctions:
    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.outcomes: dict[str, dict[str, str]] = {}  # by token
        self.heartbeats: list[str] = []

    async def succeed(self, token: str, output: str) -> CallbackResult:
        return self._ended(token, {"output": output})

    async def fail(self, token: str, *, error: str, cause: str) -> CallbackResult:
        return self._ended(token, {"error": error, "cause": cause})

    async def heartbeat(self, token: str) -> CallbackResult:
        if token not in self.waiting:
            return CLOSED
        self.heartbeats.append(token)
        return Sent()

    def _ended(self, token: str, outcome: dict[str, str]) -> CallbackResult:
        if token not in self.waiting:
            return CLOSED
        self.waiting.discard(token)
        self.outcomes[token] = outcome
        return Sent()
