"""Which loops a notification wakes."""

from collections.abc import Collection
from dataclasses import dataclass, field

from conveyor.app.engines import Engines
from conveyor.loops import Wakeup
from conveyor.steps.deliver.sender import OutboxSender
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.progress import ProgressFeed
from conveyor.steps.shared.notifier import Notifier, Topic


@dataclass(frozen=True, slots=True)
class Wakeups:
    """What wakes the loops that repeat a step. The dispatcher and the sender wake their own."""

    control: Wakeup = field(default_factory=Wakeup)
    progress: Wakeup = field(default_factory=Wakeup)
    encryption: Wakeup = field(default_factory=Wakeup)


def build_notifier(engines: Engines) -> Notifier:
    others = None if engines.is_alone else engines.coordination
    return Notifier(coordination=others, incarnation=engines.incarnation)


def wake_by(
    notifier: Notifier, dispatcher: Dispatcher, deliver: OutboxSender, progress: ProgressFeed
) -> Wakeups:
    """Let notifications wake the loops of this process."""
    wakeups = Wakeups()

    def wake_progress(names: Collection[str] | None) -> None:
        if progress.notified(names):
            wakeups.progress.wake_one()

    notifier.on(Topic.RUNS, dispatcher.discovery.notified)
    notifier.on(Topic.RUNS, wake_progress)
    notifier.on(Topic.OUTBOX, lambda _: deliver.wake())
    notifier.on(Topic.CONTROL_QUEUE, lambda _: wakeups.control.wake_one())
    notifier.on(Topic.ENCRYPTION_KEYS, lambda _: wakeups.encryption.wake_one())
    notifier.on(Topic.GATEWAY_KEYS, dispatcher.discovery.keys_served)
    return wakeups
