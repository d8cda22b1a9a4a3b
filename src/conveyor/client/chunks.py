"""Task lists of any length, split into calls; a list is never held as a whole."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping

import msgspec

from conveyor.client.models import NewTask

MOST_TASKS = 10_000  # of a call
MOST_BYTES = 16 * 1024 * 1024
LONGEST_KEY = 100  # the service takes 128 characters, and a suffix must fit

Task = str | Mapping[str, object] | NewTask
Tasks = Iterable[Task] | AsyncIterable[Task]


class Chunk(msgspec.Struct, frozen=True):
    """The tasks of one call, each as JSON, and their place in the list."""

    number: int
    first: int
    tasks: list[bytes]
    is_last: bool

    def body(self, **fields: object) -> bytes:
        """The call's body: the same bytes for the same list, as an idempotent repetition requires."""
        given = {name: value for name, value in fields.items() if value is not None}
        head = msgspec.json.encode(given)[1:]
        return b'{"tasks":[%b]%b%b' % (b",".join(self.tasks), b"," if given else b"", head)


async def chunked(
    tasks: Tasks, *, most: int = MOST_TASKS, most_bytes: int = MOST_BYTES
) -> AsyncGenerator[Chunk, None]:
    """Split a list into chunks that fit a call. An empty list is one empty chunk."""
    part: list[bytes] = []
    number = first = size = 0
    async for task in _each(tasks):
        raw = _encoded(task)
        if part and (len(part) == most or size + len(raw) > most_bytes):
            yield Chunk(number, first, part, is_last=False)
            number, first, size, part = number + 1, first + len(part), 0, []
        part.append(raw)
        size += len(raw) + 1
    yield Chunk(number, first, part, is_last=True)


def key_of(key: str, part: str | int) -> str:
    """The idempotency key of one call of a submission."""
    short = key if len(key) <= LONGEST_KEY else hashlib.sha256(key.encode()).hexdigest()
    return f"{short}/{part}"


async def _each(tasks: Tasks) -> AsyncIterator[Task]:
    if isinstance(tasks, str):
        raise TypeError("tasks must be a list or another iterable, got a single string")
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield task
    else:
        for task in tasks:
            yield task


def _encoded(task: Task) -> bytes:
    return msgspec.json.encode({"url": task} if isinstance(task, str) else task)
