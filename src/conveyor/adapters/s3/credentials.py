"""AWS credentials from the usual places: AWS_* variables, profile, container, instance.

botocore finds them and refreshes those that expire, in the thread that asks for them.
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.clock import Clock

if TYPE_CHECKING:
    from obstore.store import S3Credential

# obstore asks again 5 minutes before the end it was told. With this one it asks every few minutes,
# so that credentials which botocore has refreshed are used early, also to sign URLs.
ASK_AGAIN = timedelta(minutes=10)


class Keys(msgspec.Struct, frozen=True):
    """Credentials as they are now."""

    access_key: str
    secret_key: str
    token: str | None = None
    expires_at: datetime | None = None  # None: they do not expire


class Credentials:
    """The credentials of one engine. Calling it may wait for the network; `for_signing` never does."""

    def __init__(self, source: Callable[[], Keys], clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Keys | None = None

    def __call__(self) -> "S3Credential":
        """Credentials for requests, refreshed if needed. obstore calls this from its own threads."""
        with self._lock:
            try:
                self._known = keys = self._source()
            except (BotoCoreError, RuntimeError) as error:  # the latter if a refresh came too late
                raise Unavailable(f"s3: there are no AWS credentials: {error}") from error
        ends = self._clock.now() + ASK_AGAIN
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": min(ends, keys.expires_at) if keys.expires_at else ends,
        }

    def for_signing(self, life: timedelta) -> Keys | None:
        """Credentials that stay valid for `life`; None if those at hand do not."""
        keys = self._known
        if keys is None or (keys.token and keys.expires_at is None):
            return None  # a session ends, even where nothing says when
        if keys.expires_at and keys.expires_at < self._clock.now() + life:
            return None
        return keys


def usual_credentials() -> Callable[[], Keys]:
    """A source of the credentials that the AWS programs would use here."""
    found = Session().get_credentials()
    if found is None:
        raise RefusedToStart(
            "settings: s3: needs AWS credentials, and there are none: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the container or machine a role"
        )

    def keys() -> Keys:
        frozen = found.get_frozen_credentials()
        # Only credentials that botocore refreshes have an end.
        ends: datetime | None = getattr(found, "_expiry_time", None)
        return Keys(frozen.access_key, frozen.secret_key, frozen.token, ends)

    return keys


def usual_region() -> str:
    """The region that the profile names, for an address that names none."""
    region: str | None = Session().get_config_variable("region")
    if not region:
        raise RefusedToStart(
            "settings: s3: needs a region: set AWS_REGION, or add `?region=` to the address"
        )
    return region
