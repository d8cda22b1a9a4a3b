"""Signatures of deliveries, checked by the libraries that receivers use."""

import json
from base64 import b64encode
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from zenrows.batch import verify_webhook_signature

from conveyor.domain.ids import EventId
from conveyor.domain.signing import Secret, headers

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


def _text(secret: Secret) -> str:
    return b64encode(secret.content).decode()
