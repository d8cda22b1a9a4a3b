"""What passes from dispatch to scrape to settle: the values of one attempt.

Not a station of its own: the three stations of an attempt share it.
"""

from datetime import timedelta

import msgspec

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.ids import JobId
from conveyor.domain.params import Params
from conveyor.domain.problem import encoded, problem
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Outcome, Task
from conveyor.ports.bodies import Spool

INTERNAL = encoded(
    problem(status=500, code="internal", detail="Something went wrong here with this page.")
)
STORAGE_FULL_WAIT = timedelta(seconds=5)  # for which no page is asked for when one found no room


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a run has in common."""

    job_id: JobId
    key: str
    params: Params
    format: str
    policy: RetryPolicy


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A page that came back and is not kept yet."""

    content: bytes | Spool
    format: str
    content_type: str | None = None  # where the gateway hands on what the site said
    spend: Spend = NOTHING
    limit: int | None = None  # of calls at once, as the gateway tells it for the key
    signal: HealthSignal = HealthSignal.ALIVE


Result = Fetched | Outcome


class FinishedAttempt(msgspec.Struct, frozen=True):
    """An attempt that is over, and not settled yet."""

    task: Task
    assignment: Assignment
    result: Result
