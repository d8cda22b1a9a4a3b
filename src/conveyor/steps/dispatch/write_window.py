"""How many tasks of a run may wait for its engine, to be claimed or to be settled.

An engine may limit the writes of each run, as DynamoDB limits those of a partition. Tasks that wait for
such writes hold places and room of their gateway key, which other runs could use. So a run has a window,
which follows the speed of its writes as in TCP's congestion avoidance: a slow write halves it, any other
makes it a little larger.
"""

from dataclasses import dataclass

MESSAGES = 10  # that a queue delivers at a time; a claim takes them one batch after another
MOST_CLAIMED = 5 * MESSAGES  # tasks of a claim: more would wait for each other
FIRST_WINDOW = 100
LEAST_WINDOW = 10
STEP = 10
SLOW_WRITE = 0.5  # seconds


@dataclass(slots=True)
class WriteWindow:
    most: int  # the places of the process: a larger window limits nothing
    size: int = FIRST_WINDOW

    def room(self, *, pending: int, finished: int) -> int:
        """How many more tasks to claim, while so many wait to be claimed and to be settled."""
        return min(MOST_CLAIMED, self.size - finished) - pending

    def learn(self, seconds: float) -> None:
        """A settle of the run, or a claim of as many tasks as messages come at a time, took so long."""
        if seconds > SLOW_WRITE:
            self.size = max(self.size // 2, LEAST_WINDOW)
        else:
            self.size = min(self.size + STEP, max(self.most, LEAST_WINDOW))
