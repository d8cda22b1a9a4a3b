"""What addresses of AWS engines share: `scheme://name?endpoint=…&region=…`, and further options."""

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
REGION = re.compile(r"[a-z0-9-]+")
ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Servers other than AWS accept any region, as long as it is the one that requests are signed for.
ANY_REGION = "us-east-1"


class AwsAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an address that is well formed; options other than endpoint and region remain."""

    name: str
    endpoint: str  # empty if it is not given
    region: str
    options: dict[str, str]

    def endpoint_of(self, service: str, environ: Mapping[str, str] = os.environ) -> str:
        """The URL of a service, given or set as the AWS programs read it; empty for AWS itself."""
        names = (f"AWS_ENDPOINT_URL_{service}", "AWS_ENDPOINT_URL")
        return (self.endpoint or _first(environ, names)).rstrip("/")

    def region_at(self, endpoint: str, environ: Mapping[str, str] = os.environ) -> str:
        """The region of a service; empty: as the profile says."""
        return self.region or _first(environ, REGIONS) or (ANY_REGION if endpoint else "")


def split_address(text: str, name: re.Pattern[str]) -> AwsAddress | None:
    """The address that follows a scheme and its colon; None if it is not well formed."""
    try:
        parts = urlsplit(f"aws:{text}")
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    options = dict(pairs)
    endpoint, region = options.pop("endpoint", None), options.pop("region", None)
    is_good = (
        text.startswith("//")
        and name.fullmatch(parts.netloc)
        and (endpoint is None or ENDPOINT.fullmatch(endpoint))
        and (region is None or REGION.fullmatch(region))
        and parts.path in {"", "/"}
        and not parts.fragment
    )
    if not is_good:
        return None
    return AwsAddress(
        name=parts.netloc, endpoint=endpoint or "", region=region or "", options=options
    )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
