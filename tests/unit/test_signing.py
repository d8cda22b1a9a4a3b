"""Signatures that others' libraries check, and keys that take turns."""

import json
from base64 import b64encode
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from zenrows.batch import verify_webhook_signature

from conveyor.domain.ids import EventId
from conveyor.domain.signing import Secret, headers
from conveyor.errors import CandidatePending, NoCandidate
from tests.unit.kit import CALLER, STRANGER, a_house

EVENT = EventId("01JZ0000000000000000000000")
OLD = Secret("01JZ0000000000000000000001", bytes(range(32)))
NEW = Secret("01JZ0000000000000000000002", bytes(range(32, 64)))
BODY = '{"name":"ünï"}'.encode()


def test_an_unsigned_delivery_is_known_by_its_id_alone() -> None:
    now = datetime.now(UTC)
    known = headers(EVENT, BODY, now, [])
    assert known["X-ZenRows-Event-Id"] == EVENT
    assert "X-Signature" not in known
    assert "webhook-signature" not in known


def test_the_official_client_takes_our_signature() -> None:
    signed = headers(EVENT, BODY, datetime.now(UTC), [OLD])
    assert verify_webhook_signature(BODY, signed["X-Signature"], {OLD.kid: _text(OLD)})
    assert not verify_webhook_signature(BODY + b" ", signed["X-Signature"], {OLD.kid: _text(OLD)})
    assert not verify_webhook_signature(BODY, signed["X-Signature"], {OLD.kid: _text(NEW)})


def test_the_library_of_standard_webhooks_takes_it_too() -> None:
    signed = headers(EVENT, BODY, datetime.now(UTC), [OLD])
    assert Webhook(f"whsec_{_text(OLD)}").verify(BODY, signed) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(f"whsec_{_text(NEW)}").verify(BODY, signed)
    with pytest.raises(WebhookVerificationError):
        Webhook(f"whsec_{_text(OLD)}").verify(BODY + b" ", signed)


def test_while_keys_change_a_receiver_may_have_either() -> None:
    signed = headers(EVENT, BODY, datetime.now(UTC), [OLD, NEW])
    for secret in OLD, NEW:
        assert Webhook(f"whsec_{_text(secret)}").verify(BODY, signed)
    both = {OLD.kid: _text(OLD), NEW.kid: _text(NEW)}
    assert verify_webhook_signature(BODY, signed["X-Signature"], both)
    assert signed["X-Signature"].endswith(f"kid={OLD.kid}")


async def test_the_first_key_is_active_and_the_next_waits_beside_it() -> None:
    house = a_house()
    first, secret = await house.rotate.begin(CALLER)
    second, _ = await house.rotate.begin(CALLER)

    keys = await house.rotate.keys(CALLER)
    assert (keys.active, keys.candidate) == (first, second)
    assert secret == b64encode(bytes(range(32))).decode()
    with pytest.raises(CandidatePending):
        await house.rotate.begin(CALLER)

    assert await house.rotate.finish(CALLER) == second
    keys = await house.rotate.keys(CALLER)
    assert (keys.active, keys.candidate) == (second, None)


async def test_a_candidate_can_be_given_up_and_another_made() -> None:
    house = a_house()
    first, _ = await house.rotate.begin(CALLER)
    await house.rotate.begin(CALLER)
    await house.rotate.give_up(CALLER)

    third, _ = await house.rotate.begin(CALLER)

    keys = await house.rotate.keys(CALLER)
    assert (keys.active, keys.candidate) == (first, third)


async def test_without_a_candidate_nothing_is_finished_and_giving_up_changes_nothing() -> None:
    house = a_house()
    for _ in range(2):
        with pytest.raises(NoCandidate):
            await house.rotate.finish(CALLER)
        before = await house.rotate.keys(CALLER)
        await house.rotate.give_up(CALLER)
        assert await house.rotate.keys(CALLER) == before
        await house.rotate.begin(CALLER)
        await house.rotate.keys(STRANGER)
        if (await house.rotate.keys(CALLER)).candidate:
            break


async def test_keys_are_a_callers_own() -> None:
    house = a_house()
    await house.rotate.begin(CALLER)
    keys = await house.rotate.keys(STRANGER)
    assert (keys.active, keys.candidate) == (None, None)


async def test_of_two_rotations_at_once_one_is_refused() -> None:
    house = a_house()
    await house.rotate.begin(CALLER)
    house.trace.before("metadata.commit", 1, lambda: house.rotate.begin(CALLER))

    with pytest.raises(CandidatePending):
        await house.rotate.begin(CALLER)


async def test_a_secret_is_encrypted_for_its_caller_and_its_key() -> None:
    house = a_house()
    key, secret = await house.rotate.begin(CALLER)
    other, _ = await house.rotate.begin(CALLER)
    assert secret.encode() not in key.encrypted_secret
    assert (
        house.encryption.decrypt(key.encrypted_secret, context=f"{CALLER}|signing|{key.kid}")
        == secret
    )
    for context in (f"{STRANGER}|signing|{key.kid}", f"{CALLER}|signing|{other.kid}"):
        with pytest.raises(Exception, match="cannot be decrypted"):
            house.encryption.decrypt(key.encrypted_secret, context=context)


def _text(secret: Secret) -> str:
    return b64encode(secret.content).decode()
