"""The address of a table on DynamoDB: `dynamodb://table?endpoint=…&region=…`."""

import os
from collections.abc import Mapping

import msgspec

from conveyor.adapters.aws.address import TABLE, split_address

FORM = "//table[?endpoint=url&region=name]"


class TableAddress(msgspec.Struct, frozen=True):
    table: str
    endpoint: str = ""  # empty for AWS itself
    region: str = ""  # empty: as the profile says


def parse_address(text: str, environ: Mapping[str, str] = os.environ) -> TableAddress | None:
    """The address that follows `dynamodb:`; None if it is not one."""
    given = split_address(text, TABLE)
    if given is None or given.options:
        return None
    endpoint = given.endpoint_of("DYNAMODB", environ)
    return TableAddress(given.name, endpoint, given.region_at(endpoint, environ))
