"""Signing keys: the keys that sign deliveries to a caller's webhooks, one active, one candidate.

A caller's first key is active at once. Each later one is a candidate, until it replaces the active
key or is removed.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime

import msgspec

from conveyor.domain.ids import CallerId, EventId
from conveyor.errors import CandidatePending, NoCandidate


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    kid: str  # a ULID
    encrypted_secret: bytes  # base64 of 32 bytes, encrypted for its caller and kid
    created_at: datetime


class SigningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one caller."""

    id: CallerId
    active: SigningKey | None = None
    candidate: SigningKey | None = None
    version: int = 0


class Secret(msgspec.Struct, frozen=True):
    """A decrypted key."""

    kid: str
    content: bytes


def context(caller: CallerId, kid: str) -> str:
    """The context of an encrypted secret: it can be decrypted for this key of this caller only."""
    return f"{caller}|signing|{kid}"


def rotated(keys: SigningKeys, new: SigningKey) -> SigningKeys:
    """The keys with a new one: the candidate, or the active key if there is none."""
    if keys.candidate:
        raise CandidatePending(
            "A rotation is in progress: finalize it or delete the candidate first"
        )
    if keys.active is None:
        return msgspec.structs.replace(keys, active=new)
    return msgspec.structs.replace(keys, candidate=new)


def finished(keys: SigningKeys) -> SigningKeys:
    """The candidate becomes the active key."""
    if keys.candidate is None:
        raise NoCandidate("No rotation is in progress: there is no candidate")
    return msgspec.structs.replace(keys, active=keys.candidate, candidate=None)


def given_up(keys: SigningKeys) -> SigningKeys:
    """The keys without the candidate, if there is one."""
    return msgspec.structs.replace(keys, candidate=None)


def headers(
    event_id: EventId, body: bytes, at: datetime, secrets: Sequence[Secret]
) -> dict[str, str]:
    """The headers that identify a delivery and, with secrets, sign it; the active key comes first.

    `X-Signature` is made with the active key, and names it. `webhook-signature` has a signature by
    each key, so that a receiver may switch to the candidate at any moment.
    """
    moment = str(int(at.timestamp()))
    known = {"X-ZenRows-Event-Id": event_id, "webhook-id": event_id, "webhook-timestamp": moment}
    if not secrets:
        return known
    active = secrets[0]
    digest = _mac(active, f"{moment}.".encode() + body).hex()
    content = f"{event_id}.{moment}.".encode() + body
    listed = [f"v1,{b64encode(_mac(secret, content)).decode()}" for secret in secrets]
    return {
        **known,
        "X-Signature": f"t={moment},v1={digest},kid={active.kid}",
        "webhook-signature": " ".join(listed),
    }


def _mac(secret: Secret, content: bytes) -> bytes:
    return hmac.digest(secret.content, content, hashlib.sha256)
