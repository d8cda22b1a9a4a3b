"""The address of queues on SQS: `sqs://prefix?endpoint=…&region=…&table=…`."""

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

FORM = "//prefix[?endpoint=url&region=name&table=name]"
# A queue's name has at most 80 characters; the longest that is added has 31.
PREFIX = re.compile(r"[A-Za-z0-9_-]{1,40}")
TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
REGION = re.compile(r"[a-z0-9-]+")
ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?/?")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Servers other than AWS accept any region, as long as it is the one that requests are signed for.
ANY_REGION = "us-east-1"


class SqsAddress(msgspec.Struct, frozen=True, kw_only=True):
    prefix: str  # of the names of queues
    endpoint: str = ""  # of SQS; empty for AWS itself
    table_endpoint: str = ""  # of DynamoDB
    region: str = ""  # empty: as the profile says
    table: str = ""  # of the records of control messages

    def queue(self, name: str) -> str:
        return f"{self.prefix}-{name}"


def parse_address(text: str, environ: Mapping[str, str] = os.environ) -> SqsAddress | None:
    """The address that follows `sqs:`; None if it is not one."""
    try:
        parts = urlsplit(f"sqs:{text}")
        given = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError:
        return None
    endpoint = given.pop("endpoint", None)
    region = given.pop("region", None)
    table = given.pop("table", None)
    is_good = (
        text.startswith("//")
        and PREFIX.fullmatch(parts.netloc)
        and parts.path in {"", "/"}
        and (endpoint is None or ENDPOINT.fullmatch(endpoint))
        and (region is None or REGION.fullmatch(region))
        and (table is None or TABLE.fullmatch(table))
        and not (given or parts.fragment)
    )
    if not is_good:
        return None
    sqs = endpoint or _first(environ, ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"))
    dynamodb = endpoint or _first(environ, ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL"))
    return SqsAddress(
        prefix=parts.netloc,
        endpoint=sqs.rstrip("/"),
        table_endpoint=dynamodb.rstrip("/"),
        region=region or _first(environ, REGIONS) or (ANY_REGION if sqs else ""),
        table=table or f"{parts.netloc}-control",
    )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
