"""API keys that the gateway refuses, because their account cannot pay or they are not valid.

A key is known by its digest alone. It is refused from a call's 401 or 402 until a call that began
later is served. Nothing here does I/O or reads a clock: `now` is a monotonic time in seconds.
"""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

import msgspec

from conveyor.domain.failure import AccountReason

FRESH = 3.0  # seconds for which a refusal is taken for granted; then the gateway is asked again
MOST_KEPT = 10_000  # keys; of more, the one that was refused first is forgotten


def digest_of(key: str) -> str:
    """What a key goes by where it must not be readable."""
    return sha256(b"conveyor gateway key\0" + key.encode()).hexdigest()


class RefusedKey(msgspec.Struct, frozen=True, kw_only=True):
    reason: AccountReason
    detail: str
    since: datetime  # of the first refusal
    since_monotonic: float  # the same moment
    refused_at: float  # of the latest


@dataclass(slots=True)
class RefusedKeys:
    known: dict[str, RefusedKey] = field(default_factory=dict)  # by digest

    def get(self, digest: str) -> RefusedKey | None:
        return self.known.get(digest)

    def refuse(
        self, digest: str, reason: AccountReason, detail: str, now: float, date: datetime
    ) -> None:
        """Note a refusal; `now` and `date` are the same moment."""
        before = self.known.pop(digest, None)
        if len(self.known) >= MOST_KEPT:
            del self.known[next(iter(self.known))]
        self.known[digest] = RefusedKey(
            reason=reason,
            detail=detail,
            since=before.since if before else date,
            since_monotonic=before.since_monotonic if before else now,
            refused_at=now,
        )

    def serve(self, digest: str, begun: float) -> bool:
        """A call with the key was served; whether it was refused until now. A call that began
        before the refusal says nothing.
        """
        refused = self.known.get(digest)
        if refused is None or begun <= refused.refused_at:
            return False
        del self.known[digest]
        return True
