"""Sending to webhooks: servers that callers choose and that are not trusted."""

from collections.abc import Mapping
from typing import Protocol

from conveyor.domain.outbox import DeliveryResult


class Webhooks(Protocol):
    """No redirect is followed, and only public addresses are connected to."""

    async def check_url(self, url: str) -> None:
        """Check that a delivery to this URL would be sent.

        Raises `InvalidArgument` or one of its kinds for a URL that is not allowed, or whose host
        has no address or one that is not public; `Overloaded` when that could not be found out
        in time.
        """
        ...

    def origin(self, url: str) -> str:
        """The host and port that deliveries to this URL go to; empty for a URL that is not
        allowed.
        """
        ...

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> DeliveryResult:
        """Send a request once, within the time-out. Every failure is a result, and none raises.

        A response of 410 is a result that `is_closed`. No error reveals anything about the
        networks of this service.
        """
        ...
