"""What is known of a staged list before it is read."""

from enum import StrEnum

import msgspec

Column = str | int  # by its name in the header, or by its place from 0 on
Places = tuple[int, int | None]  # where URL and external id stand


class ListKind(StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"
    TXT = "txt"


class ListSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a list is to be read. All but the kind is for CSV alone."""

    kind: ListKind
    delimiter: str = ","
    quote: str = '"'
    header: bool = False
    url: Column = 0
    external_id: Column | None = None
