"""The address of a table on DynamoDB: `dynamodb://table?endpoint=…&region=…`."""

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

FORM = "//table[?endpoint=url&region=name]"
TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
REGION = re.compile(r"[a-z0-9-]+")
ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?")
ENDPOINTS = ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL")  # as the AWS programs read them
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Servers other than AWS accept any region, as long as it is the one that requests are signed for.
ANY_REGION = "us-east-1"


class TableAddress(msgspec.Struct, frozen=True):
    table: str
    endpoint: str = ""  # empty for AWS itself
    region: str = ""  # empty: as the profile says


def parse_address(text: str, environ: Mapping[str, str] = os.environ) -> TableAddress | None:
    """The address that follows `dynamodb:`; None if it is not one."""
    try:
        parts = urlsplit(f"dynamodb:{text}")
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    given = dict(options)
    endpoint, region = given.pop("endpoint", None), given.pop("region", None)
    is_good = (
        text.startswith("//")
        and TABLE.fullmatch(parts.netloc)
        and (endpoint is None or ENDPOINT.fullmatch(endpoint))
        and (region is None or REGION.fullmatch(region))
        and not (given or parts.path or parts.fragment)
    )
    if not is_good:
        return None
    endpoint = endpoint or _first(environ, ENDPOINTS)
    return TableAddress(
        table=parts.netloc,
        endpoint=endpoint.rstrip("/"),
        region=region or _first(environ, REGIONS) or (ANY_REGION if endpoint else ""),
    )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
