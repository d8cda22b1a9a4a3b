"""The progress of a run: from its server-sent events, or by polling a service without them.

A stream may break at any time: the service restarts, a proxy closes idle connections. It is resumed
with `Last-Event-ID`, and by the run's id once an event has named the run.
"""

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
SILENCE = 45.0  # seconds: the service sends a heartbeat every 15 s
WINDOW = 10.0  # seconds over which a rate is measured


class Event(msgspec.Struct, frozen=True):
    id: str
    data: bytes


class EventReader:
    """Parses the lines of a stream of server-sent events."""

    def __init__(self) -> None:
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> Event | None:
        """The event that ends with this line, if any."""
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
    """The service has no server-sent events."""


class Following:
    """Follows one run over any number of connections."""

    def __init__(
        self, transport: Transport, job_id: str, run_id: str | None, poll_every: float
    ) -> None:
        self._transport = transport
        self._job_id = job_id
        self._run_id = run_id  # set by the first event: after a rerun the job has another run
        self._poll_every = poll_every
        self._seen: str | None = None
        self._last: Progress | None = None

    async def progress(self) -> AsyncGenerator[Progress, None]:
        """Every new state, up to the end of the run."""
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
                # The stream ended before the run did: the service is stopping. Connect to the next.
                await self._transport.network.sleep(self._transport.patience.delay(1))
            except NoEvents:
                break
            except ClientError as error:
                await failures.wait_or_raise(error, retryable=_is_retryable(error))
        async with aclosing(self._poll()) as states:
            async for one in states:
                yield one

    async def _listen(self) -> AsyncGenerator[Progress | None, None]:
        """The events of one connection; first None, once the stream is open."""
        headers = {"Accept": EVENTS} | ({"Last-Event-ID": self._seen} if self._seen else {})
        path = path_of(*of_run(self._job_id, self._run_id, "events"))
        try:
            async with self._transport.response(
                "GET", path, headers=headers, timeout=SILENCE
            ) as response:
                if not response.headers.get("Content-Type", "").startswith(EVENTS):
                    raise NoEvents(f"the response must be {EVENTS}")
                yield None
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        self._seen = event.id or None
                        yield decoded(event.data, Progress)
        except (NotFoundError, NotSupportedError):
            # Either the path or the run does not exist: polling the run tells which.
            raise NoEvents("this service has no events of runs") from None

    async def _poll(self) -> AsyncGenerator[Progress, None]:
        """Every new state, by reading the run every `poll_every` seconds."""
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
            if known is None or _without_rate(progress) != _without_rate(known):
                yield progress
            if run.has_ended:
                return
            await self._transport.network.sleep(self._poll_every)

    async def _run(self) -> Run:
        path = path_of(*of_run(self._job_id, self._run_id))
        if self._run_id is not None:
            return await self._transport.read(Run, path)
        return latest_run(await self._transport.read(Job, path))


def _is_retryable(error: ClientError) -> bool:
    # Wider than for calls: nothing is lost by opening the stream again after any server error.
    return isinstance(error, UnreachableError) or (
        isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)
    )


async def _events(response: Response) -> AsyncGenerator[Event, None]:
    reader = EventReader()
    async for line in response.lines():
        if event := reader.feed(line):
            yield event


def _measured(job_id: str, run: Run, readings: deque[tuple[float, int]]) -> Progress:
    """The progress of a run; its rate is measured over the last `WINDOW` seconds."""
    now, stats = time.monotonic(), run.stats
    readings.append((now, stats.completed))
    while len(readings) > 2 and readings[1][0] <= now - WINDOW:
        readings.popleft()
    then, done = readings[0]
    rate = (stats.completed - done) / (now - then) if now > then else None
    is_total_known = run.last_batch_received and run.ingest_status != "pending"
    is_moving = is_total_known and not run.has_ended and run.pause_state == "active"
    return Progress(
        job_id=job_id,
        run_id=run.run_id,
        status=run.status,
        pause_state=run.pause_state,
        stats=stats,
        ingest_status=run.ingest_status,
        rate=rate,
        waiting=run.waiting,
        eta_seconds=math.ceil((stats.total - stats.completed) / rate)
        if rate and is_moving
        else None,
    )


def _without_rate(progress: Progress) -> Progress:
    return msgspec.structs.replace(progress, rate=None, eta_seconds=None)
