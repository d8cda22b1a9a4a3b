"""The address of queues on SQS: `sqs://prefix?endpoint=…&region=…&table=…`."""

import os
import re
from collections.abc import Mapping

import msgspec

from conveyor.adapters.aws.address import TABLE, split_address

FORM = "//prefix[?endpoint=url&region=name&table=name]"
# A queue's name has at most 80 characters; the longest that is added has 31.
PREFIX = re.compile(r"[A-Za-z0-9_-]{1,40}")


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
    given = split_address(text, PREFIX)
    if given is None:
        return None
    options = dict(given.options)
    table = options.pop("table", f"{given.name}-control")
    if options or not TABLE.fullmatch(table):
        return None
    endpoint = given.endpoint_of("SQS", environ)
    return SqsAddress(
        prefix=given.name,
        endpoint=endpoint,
        table_endpoint=given.endpoint_of("DYNAMODB", environ),
        region=given.region_at(endpoint, environ),
        table=table,
    )
