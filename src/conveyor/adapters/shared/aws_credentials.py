"""AWS credentials and regions from the usual places: AWS_* variables, profile, container, instance.

botocore finds credentials and refreshes those that expire, in the thread that asks for them.
"""

from collections.abc import Callable
from datetime import datetime

import msgspec
from botocore.session import Session

from conveyor.errors import RefusedToStart


class Keys(msgspec.Struct, frozen=True):
    """Credentials as they are now."""

    access_key: str
    secret_key: str
    token: str | None = None
    expires_at: datetime | None = None  # None: they do not expire


def usual_credentials(engine: str) -> Callable[[], Keys]:
    """A source of the credentials that the AWS programs would use here, for an engine like `s3:`."""
    found = Session().get_credentials()
    if found is None:
        raise RefusedToStart(
            f"settings: {engine} needs AWS credentials, and there are none: set AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the container or machine a role"
        )

    def keys() -> Keys:
        frozen = found.get_frozen_credentials()
        # Only credentials that botocore refreshes have an end.
        ends: datetime | None = getattr(found, "_expiry_time", None)
        return Keys(frozen.access_key, frozen.secret_key, frozen.token, ends)

    return keys


def usual_region(engine: str) -> str:
    """The region that the profile names, for an address that names none."""
    region: str | None = Session().get_config_variable("region")
    if not region:
        raise RefusedToStart(
            f"settings: {engine} needs a region: set AWS_REGION, or add `?region=` to the address"
        )
    return region
