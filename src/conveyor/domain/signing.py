"""The keys that a caller's notifications are signed with: one in use, one about to be.

A first key is in use at once. Each later one is a candidate beside it, until it takes its place or
is given up.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime

import msgspec

from conveyor.domain.ids import CallerId, EventId
from conveyor.errors import CandidatePending, NoCandidate

SECRET_BYTES = 32


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    kid: str  # a ULID
    encrypted_secret: bytes  # base64 of 32 bytes, encrypted for its caller and kid
    created_at: datetime


class SigningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's two slots."""

    id: CallerId
    active: SigningKey | None = None
    candidate: SigningKey | None = None
    version: int = 0


class Secret(msgspec.Struct, frozen=True):
    """A key that is open, to sign with."""

    kid: str
    content: bytes


def context(caller: CallerId, kid: str) -> str:
    """Where a secret belongs: encrypted for one key of one caller it opens nowhere else."""
    return f"{caller}|signing|{kid}"


def rotated(keys: SigningKeys, new: SigningKey) -> SigningKeys:
    """With a new key: a candidate, or in use at once if there is none."""
    if keys.candidate:
        raise CandidatePending("A rotation is under way: finish it or give it up first")
    if keys.active is None:
        return msgspec.structs.replace(keys, active=new)
    return msgspec.structs.replace(keys, candidate=new)


def finished(keys: SigningKeys) -> SigningKeys:
    """The candidate is the one in use."""
    if keys.candidate is None:
        raise NoCandidate("There is no rotation under way")
    return msgspec.structs.replace(keys, active=keys.candidate, candidate=None)


def given_up(keys: SigningKeys) -> SigningKeys:
    """The candidate goes, if there is one."""
    return msgspec.structs.replace(keys, candidate=None)


def headers(
    event_id: EventId, body: bytes, at: datetime, secrets: Sequence[Secret]
) -> dict[str, str]:
    """What a delivery is known by, and its signatures, if it is signed; the key in use comes first.

    `X-Signature` names its key, and is by the one in use. `webhook-signature` names none, and is
    by every key, so that a receiver may go over to the next one at any moment.
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
