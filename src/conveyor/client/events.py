"""The progress of a run: by its server-sent events, or by polling where there are none."""

import math
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from conveyor.client.errors import (
    ApiError,
    ClientError,
    NotFoundError,
    NotSupportedError,
    UnreachableError,
)
from conveyor.client.models import Job, Progress, Run, latest_run
from conveyor.client.transport import Failures, Response, Transport, decoded, of_run, path_of

EVENTS = "text/event-stream"
SILENCE = 45.0  # seconds: three heartbeats
WINDOW = 10.0  # seconds over which a rate is measured


class Event(msgspec.Struct, frozen=True):
    id: str
    data: bytes


class EventReader:
    """Lines of a stream become events."""

    def __init__(self) -> None:
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> Event | None:
        """The event that ends with this line, if one does."""
        line = line.rstrip(b"\r\n")
        if not line:
            data, self._data = self._data, []
            return Event(self._id, b"\n".join(data)) if data else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            self._id = value.decode(errors="replace")
        return None


class NoEvents(ClientError):
    """This service has no such stream."""


class Following:
    """Follows one run, and remembers what it has seen of it."""

    def __init__(
        self, transport: Transport, job_id: str, run_id: str | None, poll_every: float
    ) -> None:
        self._transport = transport
        self._job_id = job_id
        self._run_id = run_id  # once known, so that a rerun is not taken for the run
        self._poll_every = poll_every
        self._seen: str | None = None
        self._last: Progress | None = None

    async def progress(self) -> AsyncGenerator[Progress, None]:
        """Every state that is seen, up to the end of the run."""
        failures = Failures(self._transport)
        while True:
            try:
                async with aclosing(self._listen()) as events:
                    async for one in events:
                        failures.end()
                        if one is not None:
                            self._last, self._run_id = one, one.run_id
                            yield one
                            if one.has_ended:
                                return
                # The stream ended before the run: the service is being stopped.
                await self._transport.network.sleep(self._transport.patience.rest(1))
            except NoEvents:
                break
            except ClientError as error:
                await failures.rest(error, passes=_may_pass(error))
        async with aclosing(self._poll()) as states:
            async for one in states:
                yield one

    async def _listen(self) -> AsyncGenerator[Progress | None, None]:
        """The events of one connection; None first, when it stands."""
        headers = {"Accept": EVENTS} | ({"Last-Event-ID": self._seen} if self._seen else {})
        path = path_of(*of_run(self._job_id, self._run_id, "events"))
        try:
            async with self._transport.response(
                "GET", path, headers=headers, timeout=SILENCE
            ) as response:
                if not response.headers.get("Content-Type", "").startswith(EVENTS):
                    raise NoEvents("the answer is no stream of events")
                yield None
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        self._seen = event.id or None
                        yield decoded(event.data, Progress)
        except (NotFoundError, NotSupportedError):
            # No such path, or no such run: asking for the run itself tells which.
            raise NoEvents("this service has no events of runs") from None

    async def _poll(self) -> AsyncGenerator[Progress, None]:
        """Every state that differs from the one before, by asking every so often."""
        readings: deque[tuple[float, int]] = deque()
        while True:
            try:
                run = await self._run()
            except NotFoundError:
                if self._last is None:
                    raise
                yield msgspec.structs.replace(self._last, status="deleted", eta_seconds=None)
                return
            progress = _measured(self._job_id, run, readings)
            known, self._last, self._run_id = self._last, progress, run.run_id
            if known is None or _lasting(progress) != _lasting(known):
                yield progress
            if run.has_ended:
                return
            await self._transport.network.sleep(self._poll_every)

    async def _run(self) -> Run:
        path = path_of(*of_run(self._job_id, self._run_id))
        if self._run_id is not None:
            return await self._transport.read(Run, path)
        return latest_run(await self._transport.read(Job, path))


def _may_pass(error: ClientError) -> bool:
    return isinstance(error, UnreachableError) or (
        isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)
    )


async def _events(response: Response) -> AsyncGenerator[Event, None]:
    reader = EventReader()
    async for line in response.lines():
        if event := reader.feed(line):
            yield event


def _measured(job_id: str, run: Run, readings: deque[tuple[float, int]]) -> Progress:
    """A run as progress, its rate from what was read in the last seconds."""
    now, stats = time.monotonic(), run.stats
    readings.append((now, stats.completed))
    while len(readings) > 2 and readings[1][0] <= now - WINDOW:
        readings.popleft()
    then, done = readings[0]
    rate = (stats.completed - done) / (now - then) if now > then else None
    is_told = rate and run.last_batch_received and run.ingest_status != "pending"
    moving = is_told and not run.has_ended and run.pause_state == "active"
    return Progress(
        job_id=job_id,
        run_id=run.run_id,
        status=run.status,
        pause_state=run.pause_state,
        stats=stats,
        ingest_status=run.ingest_status,
        rate=rate,
        waiting=run.waiting,
        eta_seconds=math.ceil((stats.total - stats.completed) / rate) if rate and moving else None,
    )


def _lasting(progress: Progress) -> Progress:
    return msgspec.structs.replace(progress, rate=None, eta_seconds=None)
