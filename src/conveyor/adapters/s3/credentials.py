"""The credentials of an S3 engine: obstore asks for them, and presigned URLs are signed by them."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError

from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock

if TYPE_CHECKING:
    from obstore.store import S3Credential

# obstore asks again 5 minutes before the end it was told. With this one it asks every few minutes,
# so that credentials which botocore has refreshed are used early, also to sign URLs.
ASK_AGAIN = timedelta(minutes=10)


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
