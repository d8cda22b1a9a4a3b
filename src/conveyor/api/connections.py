"""Whose connections are open: a limit on each caller's.

A connection belongs to the caller that last authenticated a request on it. Until then it is
nobody's, and counts only against the service's own limit: keys are not known before a head is read.
"""

from collections import Counter
from dataclasses import dataclass, field

from starlette.requests import Request

from conveyor.api.auth import caller_of
from conveyor.domain.ids import CallerId
from conveyor.steps.shared.quotas import check_quota, count_down

LINE = "conveyor.line"  # of a scope: the connection that the request came on


@dataclass(slots=True, eq=False)
class Line:
    """One connection, and who has it."""

    owner: CallerId | None = None
    counts: Counter[CallerId] = field(default_factory=Counter)  # those it is counted in

    def give_to(self, caller: CallerId, counts: Counter[CallerId]) -> None:
        self.let_go()
        self.owner, self.counts = caller, counts
        counts[caller] += 1

    def let_go(self) -> None:
        if self.owner is not None:
            count_down(self.counts, self.owner)
            self.owner = None


@dataclass(frozen=True, slots=True)
class Connections:
    most: int = 0  # of one caller; 0 is any number
    counts: Counter[CallerId] = field(default_factory=Counter)

    def count(self, request: Request) -> None:
        """Count the connection of a known caller's request, or refuse it with `QuotaExceeded`.

        The refusal closes the connection: a client that keeps it would be refused again.
        """
        line: Line | None = request.scope.get(LINE)
        caller = caller_of(request)
        if not self.most or line is None or line.owner == caller:
            return
        check_quota(
            "caller_connections", self.counts[caller], 1, self.most, {"Connection": "close"}
        )
        line.give_to(caller, self.counts)
