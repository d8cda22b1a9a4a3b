"""Keys that the gateway refuses: refused here as well, until the gateway serves them again."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from conveyor.domain.breaker import (
    FRESH,
    MOST_KEPT,
    HealthSignal,
    RefusedGatewayKeys,
    gateway_key_digest,
)
from conveyor.domain.failure import AccountReason
from conveyor.errors import (
    ApiKeyCapReached,
    CallerFault,
    PaymentRequired,
    StorageFull,
    SubscriptionInactive,
)
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.steps.shared.gateway_key_check import NOWHERE, PATIENCE, GatewayKeyCheck
from conveyor.steps.shared.notifier import Notifier, Topic
from conveyor.testing.clock import NOON, FakeClock
from conveyor.testing.factories import gateway_refusal
from tests.harness import time_lapse
from tests.harness.memory_service import KEY, a_house
from tests.harness.time_lapse import LapseClock

NO_CREDITS = gateway_refusal(402, "AUTH004", problem="{}")
NO_HOST = gateway_refusal(404, "RESP007", problem="{}")
AWAY = gateway_refusal(502, "gateway_unreachable", problem="{}", signal=HealthSignal.UNREACHABLE)
DIGEST = gateway_key_digest(KEY)


class Asked:
    """A gateway that answers as it is told, and counts how often it is asked."""

    def __init__(self, answer: Page | GatewayRefusal) -> None:
        self.answer, self.requests = answer, list[PageRequest]()

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        self.requests.append(request)
        with pytest.raises(StorageFull):
            spool()
        await asyncio.sleep(0.1)
        return self.answer

    async def check_health(self) -> bool:
        return True


class Hanging(Asked):
    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        await asyncio.sleep(60)
        return self.answer


def gateway_key_check(gateway: Asked, reopened: list[str] | None = None) -> GatewayKeyCheck:
    notifier = Notifier()
    told = [] if reopened is None else reopened
    notifier.on(Topic.GATEWAY_KEYS, lambda digests: told.extend(digests or ()))
    return GatewayKeyCheck(
        gateway=gateway,
        refused_keys=RefusedGatewayKeys(),
        encryption=a_house().encryption,
        clock=LapseClock(),
        notifier=notifier,
    )


def refuse(
    one: GatewayKeyCheck, reason: AccountReason = AccountReason.INSUFFICIENT_CREDITS
) -> None:
    one.refused_keys.refuse(
        DIGEST, reason, "no credits left", one.clock.monotonic(), one.clock.now()
    )


async def answer_of(one: GatewayKeyCheck, key: str = KEY) -> CallerFault | None:
    try:
        await one.check_key(key)
    except CallerFault as refused:
        return refused
    return None


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (AccountReason.INSUFFICIENT_CREDITS, PaymentRequired),
        (AccountReason.API_KEY_CAP_REACHED, ApiKeyCapReached),
        (AccountReason.SUBSCRIPTION_INACTIVE, SubscriptionInactive),
    ],
)
def test_a_key_that_was_just_refused_is_refused_here_without_a_call(
    reason: AccountReason, error: type[CallerFault]
) -> None:
    async def main() -> None:
        gateway = Asked(NO_HOST)
        one = gateway_key_check(gateway)
        refuse(one, reason)
        refused = await answer_of(one)
        assert isinstance(refused, error)
        assert "no credits left" in str(refused)
        assert refused.headers["Retry-After"] == str(int(FRESH))
        assert await answer_of(one, "another key") is None
        assert not gateway.requests

    time_lapse.run(main())


def test_a_key_that_is_still_refused_costs_one_free_call_in_a_while() -> None:
    async def main() -> None:
        gateway = Asked(NO_CREDITS)
        one = gateway_key_check(gateway)
        refuse(one)
        await asyncio.sleep(FRESH)
        together = await asyncio.gather(*(answer_of(one) for _ in range(5)))
        assert all(isinstance(refused, PaymentRequired) for refused in together)
        assert [(asked.url, asked.gateway_key) for asked in gateway.requests] == [(NOWHERE, KEY)]
        await asyncio.sleep(FRESH / 2)
        assert await answer_of(one)
        assert len(gateway.requests) == 1

    time_lapse.run(main())


@pytest.mark.parametrize("answer", [NO_HOST, Page(content=b"")])
def test_whoever_has_paid_is_served_by_the_next_call(answer: Page | GatewayRefusal) -> None:
    async def main() -> None:
        reopened: list[str] = []
        one = gateway_key_check(Asked(answer), reopened)
        refuse(one)
        await asyncio.sleep(FRESH)
        began = one.clock.monotonic()
        assert await answer_of(one) is None
        assert one.clock.monotonic() - began < 5
        assert reopened == [DIGEST]
        assert not one.refused_keys.known

    time_lapse.run(main())


def test_a_gateway_that_works_on_the_page_accepts_the_key() -> None:
    async def main() -> None:
        one = gateway_key_check(Hanging(NO_HOST))
        refuse(one)
        await asyncio.sleep(FRESH)
        began = one.clock.monotonic()
        assert await answer_of(one) is None
        assert one.clock.monotonic() - began < PATIENCE.total_seconds() + 0.1

    time_lapse.run(main())


def test_a_gateway_that_is_away_says_nothing_about_a_key() -> None:
    async def main() -> None:
        one = gateway_key_check(Asked(AWAY))
        refuse(one)
        await asyncio.sleep(FRESH)
        assert isinstance(await answer_of(one), PaymentRequired)

    time_lapse.run(main())


def test_a_call_that_began_before_the_refusal_does_not_lift_it() -> None:
    keys = RefusedGatewayKeys()
    keys.refuse(DIGEST, AccountReason.INSUFFICIENT_CREDITS, "no credits", 10.0, NOON)
    assert not keys.serve(DIGEST, 9.0)
    assert keys.get(DIGEST)
    assert keys.serve(DIGEST, 11.0)
    assert keys.get(DIGEST) is None


def test_a_refusal_that_is_repeated_keeps_its_beginning() -> None:
    keys = RefusedGatewayKeys()
    for now in (10.0, 20.0):
        date = NOON + timedelta(seconds=now)
        keys.refuse(DIGEST, AccountReason.INSUFFICIENT_CREDITS, "no credits", now, date)
    refused = keys.get(DIGEST)
    assert refused
    assert refused.since == NOON + timedelta(seconds=10)
    assert (refused.since_monotonic, refused.refused_at) == (10.0, 20.0)


def test_the_keys_that_are_known_are_bounded_and_not_readable() -> None:
    keys = RefusedGatewayKeys()
    for number in range(MOST_KEPT + 5):
        digest = gateway_key_digest(f"{KEY}{number}")
        assert KEY not in digest
        keys.refuse(digest, AccountReason.INSUFFICIENT_CREDITS, "no credits", 1.0, NOON)
    assert len(keys.known) == MOST_KEPT


async def test_a_job_whose_key_is_refused_takes_no_tasks_and_is_not_resumed() -> None:
    house = a_house()
    job_id, _ = await house.submit(1, status="open")
    one = GatewayKeyCheck(
        gateway=Asked(NO_CREDITS),
        refused_keys=RefusedGatewayKeys(),
        encryption=house.encryption,
        clock=FakeClock(),
        notifier=Notifier(),
    )
    await one.check_job_key(await house.job(job_id))
    refuse(one)
    with pytest.raises(PaymentRequired):
        await one.check_job_key(await house.job(job_id))
