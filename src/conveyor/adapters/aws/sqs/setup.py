"""Creates what `sqs:` needs before it is used: the control queues, and the queue of dead messages.

Run queues are created with their runs.
"""

import json
from collections.abc import Iterable

from conveyor.adapters.aws.sqs.address import SqsAddress
from conveyor.adapters.aws.sqs.calls import SqsCalls
from conveyor.adapters.aws.sqs.control_messages import control_queues
from conveyor.adapters.aws.sqs.queues import DEAD, RETENTION
from conveyor.ports.queues import MOST_RECEIVES


async def set_up_queues(
    calls: SqsCalls, address: SqsAddress, kinds: Iterable[str] | None
) -> list[str]:
    """Create the queues that do not exist; say what was done.

    `kinds` are those of control messages, None if the control queue is on another engine.
    """
    retention = {"MessageRetentionPeriod": str(int(RETENTION.total_seconds()))}
    known = set(await calls.names(f"{address.prefix}-"))
    dead = await calls.create(address.queue(DEAD), retention)
    policy = {"deadLetterTargetArn": await calls.arn(dead), "maxReceiveCount": str(MOST_RECEIVES)}
    names = [address.queue(name) for name in control_queues(kinds)] if kinds is not None else []
    for name in names:
        await calls.create(name, retention | {"RedrivePolicy": json.dumps(policy)})
    return [
        f"the queue {name} exists" if name in known else f"created the queue {name}"
        for name in (address.queue(DEAD), *names)
    ]
