"""The values of one attempt, which pass from dispatch to scrape to settle."""

from datetime import timedelta

import msgspec

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.ids import JobId
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.params import Params
from conveyor.domain.problem import encoded, problem
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Outcome, Task
from conveyor.ports.bodies import Spool

INTERNAL = encoded(
    problem(status=500, code="internal", detail="Something went wrong here with this page.")
)
STORAGE_FULL_WAIT = timedelta(seconds=5)  # without a fetch, after a page could not be stored


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a run has in common."""

    job_id: JobId
    gateway_key: str
    params: Params
    format: str
    policy: RetryPolicy


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A page that was fetched and is not stored yet."""

    content: bytes | Spool
    format: str
    content_type: str | None = None  # of the site, where the gateway passes it on
    spend: Spend = NOTHING
    limit: int | None = None  # of concurrent calls, as the gateway advertises it for the key
    signal: HealthSignal = HealthSignal.ALIVE
    facts: PageFacts = NO_FACTS


# What a call came to, before its page is stored. `Settle` stores the page: then it is an `Outcome`.
CallResult = Fetched | Outcome


class FinishedAttempt(msgspec.Struct, frozen=True):
    """An attempt that has ended and is not settled yet."""

    task: Task
    assignment: Assignment
    result: CallResult
