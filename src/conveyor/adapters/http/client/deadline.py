"""A bound on the time of one call."""

import asyncio


class Deadlines:
    """Deadlines of one length for many calls, with one timer: the oldest ends first.

    All deadlines have the same length, so they expire in the order in which they began. A timer for
    each call took a twentieth of the CPU time of a page, and `asyncio.timeout` three times that.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[Deadline, float] = {}  # when each ends, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> "Deadline":
        """A deadline for the current task, until it is lifted."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        deadline = Deadline(task, self._running)
        self._running[deadline] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._expire, loop)
        return deadline

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._running:
            eldest, end = next(iter(self._running.items()))
            if end > now:
                self._timer = loop.call_at(end, self._expire, loop)
                return
            eldest.expire()


class Deadline:
    """Cancels its task, once, when its time is up."""

    __slots__ = ("_running", "_task", "_was_cancelled")

    def __init__(self, task: "asyncio.Task[object]", running: "dict[Deadline, float]") -> None:
        self._task = task
        self._running = running
        self._was_cancelled = False

    def take_cancellation(self) -> bool:
        """Withdraw the cancellation that this deadline caused. Call it once.

        Return whether the task may go on: False if something else has cancelled it as well.
        """
        return self._was_cancelled and self._task.uncancel() == 0

    def lift(self) -> None:
        self._running.pop(self, None)

    def expire(self) -> None:
        self.lift()
        self._was_cancelled = True
        self._task.cancel()
