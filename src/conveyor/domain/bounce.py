"""For how long a message is put away that was received, and led to nothing.

Each receive of a message counts, and a queue gives up on one that was received too often. So what
could not be used is not to be seen again soon, and later and later when it happens again.
"""

from datetime import timedelta
from zlib import crc32

from conveyor.domain.ids import TaskId
from conveyor.domain.task import Task

SHORTEST_HIDING = timedelta(seconds=5)
LONGEST_HIDING = timedelta(minutes=5)


def in_vain(task: Task, receives: int) -> int:
    """How many receives of a task's message were no attempt at it, the present one taken for one.

    A message that replaced another began anew: then it is less than it could be, and never below 1.
    """
    return max(receives - task.attempts - task.lost, 1)


def hiding(task_id: TaskId, times: int) -> timedelta:
    """5 s after the first time, doubling up to 5 min, and up to a quarter less.

    So messages that bounced together come back apart. The difference is drawn from the task itself.
    """
    doublings: int = 2 ** min(max(times, 1) - 1, 30)
    base = min(SHORTEST_HIDING * doublings, LONGEST_HIDING)
    spread = crc32(f"{task_id}/{times}".encode()) / 2**32
    return base * (1 - spread / 4)
