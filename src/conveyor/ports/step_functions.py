"""Callbacks to states of AWS Step Functions that wait for a task token."""

from typing import Protocol

import msgspec


class Sent(msgspec.Struct, frozen=True):
    """The state received the call."""


class TaskClosed(msgspec.Struct, frozen=True):
    """No state waits for the token, or none ever did. The caller must not call again.

    This is also the answer when an earlier call succeeded and its response was lost.
    """

    why: str


class RetryLater(msgspec.Struct, frozen=True):
    """The state may or may not have received the call. The caller must call again later."""

    why: str
    status_code: int | None = None


CallbackResult = Sent | TaskClosed | RetryLater


class StepFunctions(Protocol):
    """Calls to the state that waits for a task token.

    Every failure is an answer; no method raises. No answer contains the token. Calls may be
    repeated: the state continues with the first one, and later ones are answered `TaskClosed`.
    """

    async def succeed(self, token: str, output: str) -> CallbackResult:
        """End the state with this output: JSON of at most 262,144 characters."""
        ...

    async def fail(self, token: str, *, error: str, cause: str) -> CallbackResult:
        """Fail the state with an error (at most 256 characters) and a cause (at most 32,768)."""
        ...

    async def heartbeat(self, token: str) -> CallbackResult:
        """Restart the heartbeat timeout of the state."""
        ...
