"""States that wait for runs, and outlive every death of the program that tells them."""

from pathlib import Path

from conveyor.ports.step_functions import CallbackResult, Sent
from conveyor.testing.memory.step_functions import CLOSED


class KeptStates:
    """Each token that is told something for the first time was waiting for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    async def succeed(self, token: str, output: str) -> CallbackResult:
        return self._told(token, "success")

    async def fail(self, token: str, *, error: str, cause: str) -> CallbackResult:
        return self._told(token, error)

    async def heartbeat(self, token: str) -> CallbackResult:
        if (self._folder / token).exists():
            return CLOSED
        return Sent()

    def outcome(self, token: str) -> str | None:
        """What the state went on with."""
        file = self._folder / token
        return file.read_text() if file.exists() else None

    def _told(self, token: str, outcome: str) -> CallbackResult:
        try:
            with (self._folder / token).open("x") as file:
                file.write(outcome)
        except FileExistsError:
            return CLOSED
        return Sent()
