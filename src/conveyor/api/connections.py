"""The connections of each caller, and a limit on them.

A connection belongs to the caller that last authenticated a request on it. Until then it counts
only against the limit of the service: the caller is not known before a head is read.
"""

from collections import Counter
from dataclasses import dataclass, field

from starlette.requests import Request

from conveyor.api.auth import caller_of
from conveyor.domain.ids import CallerId
from conveyor.steps.shared.quotas import check_quota, count_down

CONNECTION = "conveyor.connection"  # of a scope: the connection that the request came on


@dataclass(slots=True, eq=False)
class OpenConnection:
    """One connection, and the caller it is counted for."""

    caller: CallerId | None = None
    counts: Counter[CallerId] = field(default_factory=Counter)  # that count it

    def assign(self, caller: CallerId, counts: Counter[CallerId]) -> None:
        self.release()
        self.caller, self.counts = caller, counts
        counts[caller] += 1

    def release(self) -> None:
        if self.caller is not None:
            count_down(self.counts, self.caller)
            self.caller = None


@dataclass(frozen=True, slots=True)
class Connections:
    most: int = 0  # of one caller; 0 is any number
    counts: Counter[CallerId] = field(default_factory=Counter)

    def count(self, request: Request) -> None:
        """Count the connection of an authenticated request, or refuse it with `QuotaExceeded`.

        The refusal closes the connection: a client that keeps it would be refused again.
        """
        connection: OpenConnection | None = request.scope.get(CONNECTION)
        caller = caller_of(request)
        if not self.most or connection is None or connection.caller == caller:
            return
        check_quota(
            "caller_connections", self.counts[caller], 1, self.most, {"Connection": "close"}
        )
        connection.assign(caller, self.counts)
