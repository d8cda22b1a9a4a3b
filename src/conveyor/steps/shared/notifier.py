"""Notifications: what steps tell the loops of this process, and those of other processes.

A step that has committed something says so here. The loops of this process are woken at once. Other
processes are told through coordination, in the background: a step neither waits for that nor fails
because of it. A notification may be lost, so every loop polls as well.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import structlog

from conveyor.domain.ids import RunId
from conveyor.domain.retry import backoff
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Coordination, Notification

BATCH_WAIT = timedelta(milliseconds=5)  # in which further notifications join the next message
MOST_NAMES = 1_000  # of a topic in a message; subscribers look at everything instead of more
FIRST_DELAY = timedelta(milliseconds=500)  # until the next attempt to subscribe
LONGEST_DELAY = timedelta(seconds=10)
EVERYTHING = ""  # in place of a name
FROM_NO_MEMBER = f"/{EVERYTHING}"  # a whole name, of a command that is no member itself

log = structlog.get_logger()


class Topic(StrEnum):
    RUNS = "runs"  # a run is new, has changed or has new tasks; names are ids of runs
    OUTBOX = "outbox"  # events are due
    CONTROL_QUEUE = "control_queue"  # a message was sent
    ENCRYPTION_KEYS = "encryption_keys"  # a rotation has changed them
    GATEWAY_KEYS = "gateway_keys"  # a refused key is served again; names are digests


# Called with the names of what has changed; with None if that may be anything of the topic.
Wake = Callable[[Collection[str] | None], None]


@dataclass(slots=True, kw_only=True)
class Notifier:
    coordination: Coordination | None = None  # None if this process is known to be alone
    incarnation: str = ""
    wakes: dict[Topic, list[Wake]] = field(default_factory=lambda: defaultdict(list))
    unsent: dict[Topic, set[str]] = field(default_factory=lambda: defaultdict(set))
    has_unsent: asyncio.Event = field(default_factory=asyncio.Event)

    # For steps, after a commit.

    def run_changed(self, run_id: RunId) -> None:
        self._notify(Topic.RUNS, run_id)

    def events_due(self) -> None:
        self._notify(Topic.OUTBOX)

    def message_sent(self) -> None:
        self._notify(Topic.CONTROL_QUEUE)

    def key_served(self, digest: str) -> None:
        self._notify(Topic.GATEWAY_KEYS, digest)

    # For loops.

    def on(self, topic: Topic, wake: Wake) -> None:
        """Call `wake` for notifications of this process and, while `listen` runs, of others."""
        self.wakes[topic].append(wake)

    async def publish(self) -> None:
        """Send to other processes what steps have notified, until cancelled."""
        if self.coordination is None:
            return
        while True:
            await self.has_unsent.wait()
            self.has_unsent.clear()
            unsent, self.unsent = self.unsent, defaultdict(set)
            try:
                for topic, names in unsent.items():
                    some = names if len(names) <= MOST_NAMES else {EVERYTHING}
                    # With the sender, which knows already: an engine may merge notifications.
                    tagged = [f"{self.incarnation}/{name}" for name in some]
                    await self.coordination.notify(topic, tagged)
            except Unavailable as error:  # the others poll
                log.debug("notifications.unsent", why=str(error))
            await asyncio.sleep(BATCH_WAIT.total_seconds())

    async def listen(self) -> None:
        """Wake the loops of this process by notifications of others, until cancelled."""
        failures = 0
        while self.coordination is not None:
            try:
                async with aclosing(self.coordination.notifications(list(Topic))) as notifications:
                    async for notification in notifications:
                        failures = 0
                        self._heard(notification)
            except Unavailable as error:
                if not failures:  # once, not at every attempt
                    log.warning("notifications.unavailable", why=str(error))
                failures += 1
            delay = backoff(failures, first=FIRST_DELAY, longest=LONGEST_DELAY)
            await asyncio.sleep(delay.total_seconds())

    def _notify(self, topic: Topic, name: str = EVERYTHING) -> None:
        self._wake(topic, [name] if name else None)
        if self.coordination is not None:
            if len(self.unsent[topic]) <= MOST_NAMES:
                self.unsent[topic].add(name)
            self.has_unsent.set()

    def _heard(self, notification: Notification) -> None:
        names: set[str] | None = None
        if notification.names is not None:
            senders = [name.partition("/") for name in notification.names]
            names = {name for sender, _, name in senders if sender != self.incarnation}
            if not names:
                return
            if EVERYTHING in names:
                names = None
        self._wake(Topic(notification.topic), names)

    def _wake(self, topic: Topic, names: Collection[str] | None) -> None:
        for wake in self.wakes[topic]:
            wake(names)
