"""States that wait for a token, in memory: for tests, and as a model of the real ones."""

from conveyor.ports.step_functions import Answer, Sent, TaskClosed

CLOSED = TaskClosed("TaskTimedOut")


class MemoryStepFunctions:
    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.outcomes: dict[str, dict[str, str]] = {}  # by token: what it was told
        self.beats: list[str] = []

    async def succeed(self, token: str, output: str) -> Answer:
        return self._told(token, {"output": output})

    async def fail(self, token: str, *, error: str, cause: str) -> Answer:
        return self._told(token, {"error": error, "cause": cause})

    async def heartbeat(self, token: str) -> Answer:
        if token not in self.waiting:
            return CLOSED
        self.beats.append(token)
        return Sent()

    def _told(self, token: str, outcome: dict[str, str]) -> Answer:
        if token not in self.waiting:
            return CLOSED
        self.waiting.discard(token)
        self.outcomes[token] = outcome
        return Sent()
