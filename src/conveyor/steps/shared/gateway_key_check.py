"""Gateway key check: refuse work for a gateway key that the gateway refuses.

A key that was refused within the last 3 s is refused without another call. After that the
check requests a page that cannot exist. For an account that cannot pay, the gateway refuses the key
at once. For any other it answers that there is no such host, which costs nothing. So a caller who
has paid is served by the next call.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from conveyor.domain.breaker import (
    FAILURES,
    FRESH,
    HealthSignal,
    RefusedGatewayKey,
    RefusedGatewayKeys,
    gateway_key_digest,
)
from conveyor.domain.credentials import context
from conveyor.domain.failure import AccountReason, Handling
from conveyor.domain.job import Job
from conveyor.errors import (
    ApiKeyCapReached,
    CallerFault,
    PaymentRequired,
    StorageFull,
    SubscriptionInactive,
    Unavailable,
)
from conveyor.ports.bodies import Spool
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.gateway import Gateway, GatewayRefusal, Page, PageRequest
from conveyor.steps.shared.notifier import Notifier

NOWHERE = "https://key-check.invalid/"  # RFC 2606: a name that never exists
# The gateway refuses a key at once: one that takes longer to answer has accepted it.
PATIENCE = timedelta(seconds=2)
ERRORS: dict[AccountReason, type[CallerFault]] = {
    AccountReason.INSUFFICIENT_CREDITS: PaymentRequired,
    AccountReason.API_KEY_CAP_REACHED: ApiKeyCapReached,
    AccountReason.SUBSCRIPTION_INACTIVE: SubscriptionInactive,
}

CheckGatewayKey = Callable[[str], Awaitable[None]]
CheckJobKey = Callable[[Job], Awaitable[None]]

log = structlog.get_logger()


async def any_key(_key: str) -> None:
    """The check of a service that has none: accept every key."""


async def any_job_key(_job: Job) -> None:
    """The same for the gateway key of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayKeyCheck:
    gateway: Gateway
    refused_keys: RefusedGatewayKeys
    encryption: KeyRing
    clock: Clock
    notifier: Notifier
    # Where processes share limits: read and write what is known of a key, by its digest.
    look_at_key: Callable[[str], Awaitable[None]] | None = None
    share_key: Callable[[str], Awaitable[None]] | None = None
    asking: set[str] = field(default_factory=set)  # digests: one concurrent call for each

    async def check_job_key(self, job: Job) -> None:
        """As `check_key`, for the gateway key of a job."""
        if not self.refused_keys.known and self.look_at_key is None:
            return
        with suppress(Unavailable):  # discovery logs a key that cannot be decrypted
            gateway_key = await self.encryption.decrypt(
                job.encrypted_gateway_key, context=context(job.caller, job.id)
            )
            await self.check_key(gateway_key)

    async def check_key(self, gateway_key: str) -> None:
        """Raise the error of a gateway key that the gateway refuses."""
        digest = gateway_key_digest(gateway_key)
        if self.look_at_key:
            await self.look_at_key(digest)
        refused = self.refused_keys.get(digest)
        if refused is None:
            return
        is_fresh = self.clock.monotonic() - refused.refused_at < FRESH
        if not is_fresh and digest not in self.asking:
            self.asking.add(digest)
            try:
                await self._ask(gateway_key, digest)
                if self.share_key and self.refused_keys.get(digest) != refused:
                    await self.share_key(digest)
            finally:
                self.asking.discard(digest)
        if refused := self.refused_keys.get(digest):
            raise self._error(refused)

    async def _ask(self, gateway_key: str, digest: str) -> None:
        begun = self.clock.monotonic()
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                request = PageRequest(url=NOWHERE, gateway_key=gateway_key)
                answer = await self.gateway.fetch(request, _no_room)
        except TimeoutError:
            answer = Page(content=b"")
        match answer:
            case GatewayRefusal(signal=signal) if signal in FAILURES or signal is HealthSignal.NONE:
                return  # a gateway that is unavailable says nothing about the key
            case GatewayRefusal(rule=rule):
                if rule.handling is Handling.ACCOUNT and (refused := self.refused_keys.get(digest)):
                    reason = rule.account or refused.reason
                    self.refused_keys.refuse(
                        digest, reason, refused.detail, self.clock.monotonic(), self.clock.now()
                    )
                    return
        if self.refused_keys.serve(digest, begun):
            log.info("key.served")
            self.notifier.key_served(digest)

    def _error(self, refused: RefusedGatewayKey) -> CallerFault:
        left = refused.refused_at + FRESH - self.clock.monotonic()
        return ERRORS[refused.reason](
            f"The gateway refuses this gateway key: {refused.detail}",
            headers={"Retry-After": str(max(math.ceil(left), 1))},
        )


def _no_room() -> Spool:
    raise StorageFull("the answer to a key check must not be stored")
