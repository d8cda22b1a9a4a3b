"""Keys that the service gives out: made, authenticated, used, revoked."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import pytest

from conveyor.adapters.crypto.key_ring import AesKeyRing, new_secret
from conveyor.domain.api_key import (
    FORM,
    OWN_JOBS,
    ApiKey,
    KeyStatus,
    NewKey,
    Scope,
    id_in,
    written,
)
from conveyor.domain.ids import ApiKeyId, CallerId
from conveyor.errors import InvalidArgument, Unavailable
from conveyor.steps.api_keys import ApiKeyAdmin
from conveyor.steps.auth import Authenticate
from conveyor.testing.clock import NOON, FakeClock
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.harness.memory_service import ClockIds
from tests.harness.trace import Trace, watched

HOUR = timedelta(hours=1)


@dataclass(slots=True)
class Desk:
    clock: FakeClock
    trace: Trace
    metadata: MemoryMetadata
    encryption: AesKeyRing
    admin: ApiKeyAdmin
    authenticate: Authenticate


@pytest.fixture
def desk() -> Desk:
    clock, trace = FakeClock(), Trace()
    metadata = MemoryMetadata(clock)
    seen = watched(metadata, "metadata", trace)
    encryption = AesKeyRing(bytes(32))
    admin = ApiKeyAdmin(
        metadata=seen,
        encryption=encryption,
        clock=clock,
        ids=ClockIds(clock),
        new_secret=new_secret,
        auth="keys",
    )
    authenticate = Authenticate(metadata=seen, encryption=encryption, clock=clock)
    return Desk(clock, trace, metadata, encryption, admin, authenticate)


async def test_a_key_is_told_once_and_kept_as_a_digest(desk: Desk) -> None:
    created = await desk.admin.create(NewKey(gateway_key="a-gateway-key"))
    assert FORM.fullmatch(created.key)
    stored = await desk.metadata.get(ApiKey, created.about.id)
    assert stored
    secret = created.key.rpartition("_")[2]
    kept = msgspec.json.encode(stored) + repr(stored).encode()
    shown = msgspec.json.encode([await desk.admin.page(limit=9)])
    for hidden in (secret, "a-gateway-key"):
        assert hidden.encode() not in kept + shown


def test_a_secret_has_160_bits_and_more() -> None:
    secrets = {new_secret() for _ in range(200)}
    assert len(secrets) == 200
    assert all(re.fullmatch(r"[0-9A-Za-z]{32}", one) for one in secrets)
    letters = set("".join(secrets))
    assert len(letters) == 62  # log2(62) * 32 = 190


async def test_a_key_is_authenticated_and_nothing_near_it(desk: Desk) -> None:
    created = await desk.admin.create(NewKey(caller="ann"))
    found = await desk.authenticate.key(created.key)
    assert found
    assert (found.id, found.caller) == (created.about.id, "ann")
    head, secret = created.key[:31], created.key[31:]
    other = await desk.admin.create(NewKey(caller="bob"))
    for near in (
        head + secret[:-1],
        head + secret + "x",
        head + secret.swapcase(),
        head + other.key[31:],
        other.key[:31] + secret,
        written(ApiKeyId("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), secret),
        created.about.id,
        "",
        created.key + "\n",
    ):
        assert await desk.authenticate.key(near) is None, near


async def test_without_a_caller_each_key_is_a_caller_of_its_own(desk: Desk) -> None:
    first, second = [await desk.admin.create(NewKey()) for _ in range(2)]
    assert str(first.about.caller) == first.about.id
    assert first.about.caller != second.about.caller


async def test_several_keys_are_one_callers(desk: Desk) -> None:
    keys = [await desk.admin.create(NewKey(caller="ann", name=str(n))) for n in range(3)]
    await desk.admin.revoke(keys[0].about.id)
    found = [await desk.authenticate.key(key.key) for key in keys]
    assert [one and one.caller for one in found] == [None, "ann", "ann"]


async def test_a_key_is_good_until_it_expires(desk: Desk) -> None:
    created = await desk.admin.create(NewKey(expires_at=NOON + HOUR))
    desk.clock.advance(HOUR - timedelta(microseconds=1))
    assert await desk.authenticate.key(created.key)
    desk.clock.advance(timedelta(microseconds=1))
    assert await desk.authenticate.key(created.key) is None
    [shown] = await desk.admin.page(limit=9)
    assert shown.status is KeyStatus.EXPIRED


async def test_a_revoked_key_opens_nothing_and_keeps_no_credential(desk: Desk) -> None:
    created = await desk.admin.create(NewKey(gateway_key="a-gateway-key"))
    assert await desk.authenticate.key(created.key)
    revoked = await desk.admin.revoke(created.about.id)
    assert revoked
    assert revoked.status is KeyStatus.REVOKED
    assert not revoked.has_gateway_key
    assert await desk.authenticate.key(created.key) is None
    desk.clock.advance(HOUR)
    assert await desk.admin.revoke(created.about.id) == revoked
    assert await desk.admin.revoke(ApiKeyId("no-such-key")) is None
    stored = await desk.metadata.get(ApiKey, created.about.id)
    assert stored
    assert stored.encrypted_gateway_key is None


async def test_a_key_that_is_used_while_it_is_revoked_stays_revoked(desk: Desk) -> None:
    created = await desk.admin.create(NewKey())
    await desk.authenticate.key(created.key)
    desk.trace.before("metadata.commit", 1, desk.authenticate.step)
    assert await desk.admin.revoke(created.about.id)
    assert await desk.authenticate.key(created.key) is None

    again = await desk.admin.create(NewKey())
    await desk.authenticate.key(again.key)
    desk.trace.forget()
    desk.trace.before("metadata.commit", 1, lambda: desk.admin.revoke(again.about.id))
    await desk.authenticate.step()
    assert await desk.authenticate.key(again.key) is None


async def test_uses_are_written_down_at_most_once_a_minute(desk: Desk) -> None:
    created = await desk.admin.create(NewKey())
    desk.trace.forget()
    for _ in range(120):
        desk.clock.advance(timedelta(seconds=1))
        await desk.authenticate.key(created.key)
        await desk.authenticate.step()
    assert len(desk.trace.of("metadata.commit")) == 2
    [shown] = await desk.admin.page(limit=9)
    assert shown.last_used_at == NOON + timedelta(seconds=61)


async def test_a_use_that_cannot_be_written_down_fails_no_request(desk: Desk) -> None:
    created = await desk.admin.create(NewKey())
    desk.trace.broken["metadata.commit"] = Unavailable("away")
    assert await desk.authenticate.key(created.key)
    with pytest.raises(Unavailable):
        await desk.authenticate.step()
    assert await desk.authenticate.key(created.key)
    desk.trace.broken.clear()
    await desk.authenticate.step()
    [shown] = await desk.admin.page(limit=9)
    assert shown.last_used_at == NOON


async def test_the_gateway_key_of_a_key_opens_for_that_key_only(desk: Desk) -> None:
    first = await desk.admin.create(NewKey(caller="ann", gateway_key="of-the-first"))
    second = await desk.admin.create(NewKey(caller="ann", gateway_key="of-the-second"))
    one, two = [await desk.metadata.get(ApiKey, key.about.id) for key in (first, second)]
    assert one
    assert two
    assert await desk.authenticate.gateway_key(one) == "of-the-first"
    swapped = msgspec.structs.replace(one, encrypted_gateway_key=two.encrypted_gateway_key)
    with pytest.raises(Unavailable):
        await desk.authenticate.gateway_key(swapped)


async def test_scopes_are_what_was_asked_for(desk: Desk) -> None:
    full = await desk.admin.create(NewKey())
    reading = await desk.admin.create(NewKey(read_only=True))
    assert full.about.scopes == OWN_JOBS
    assert reading.about.scopes == (Scope.READ,)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (NewKey(caller=""), "caller"),
        (NewKey(caller="a b"), "caller"),
        (NewKey(caller="a|b"), "caller"),
        (NewKey(caller="a\n"), "caller"),
        (NewKey(caller="x" * 65), "caller"),
        (NewKey(name="two\nlines"), "name"),
        (NewKey(name="x" * 101), "name"),
        (NewKey(expires_at=NOON), "expires_at"),
        (NewKey(expires_at=datetime(2099, 1, 1)), "expires_at"),  # noqa: DTZ001 - that is the fault
        (NewKey(gateway_key=""), "gateway_key"),
        (NewKey(gateway_key="a b"), "gateway_key"),
        (NewKey(gateway_key="a\r\nX-Evil: 1"), "gateway_key"),
        (NewKey(gateway_key="x" * 513), "gateway_key"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_made(
    desk: Desk, wanted: NewKey, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await desk.admin.create(wanted)
    assert refused.value.extras == {"field": field}
    assert await desk.admin.page(limit=9) == []


def test_the_id_is_read_off_a_whole_key_only() -> None:
    key = written(ApiKeyId("01M7GNPVD0697FEM6F7VYWRK5F"), "x" * 32)
    assert id_in(key) == "01M7GNPVD0697FEM6F7VYWRK5F"
    assert [id_in(text) for text in (key[:-1], key + "x", "x" + key, "cvk__", CallerId(""))] == [
        None
    ] * 5
