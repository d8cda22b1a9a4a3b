"""JSON that cannot be accepted: the decoder's complaint, as a message for the caller."""

import re
from difflib import get_close_matches
from typing import get_args, get_type_hints

import msgspec

from conveyor.errors import InvalidArgument

LONGEST_SHOWN = 80  # characters of a name or value that are compared or shown

# What the decoder raises for bytes that are not JSON. Invalid UTF-8 surfaces only where a string
# is read, and as its own exception.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

UNKNOWN_FIELD = re.compile(
    r"Object contains unknown field `(?P<name>.*?)`(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL
)


def field_error(field: str, what: str) -> InvalidArgument:
    """An error about one field of a body, which it names in its extras as well."""
    return InvalidArgument(f"`{field}` {what}", extras={"field": field})


def brief(text: str, most: int = 300) -> str:
    """A text of any length as one that can be compared and shown: its beginning and its end."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[-most // 3 :]}"


def message_of(error: Exception) -> str:
    """A decoder's message without msgspec's notation of paths, and short whatever it quotes."""
    return brief(str(error)).replace("`$.", "`").replace("`$`", "the body")


def suggestion(message: str, kind: type[msgspec.Struct]) -> str:
    """A hint for an unknown field that resembles a known one of the same object, else nothing."""
    unknown = UNKNOWN_FIELD.search(brief(message))
    owner = unknown and _struct_at(kind, unknown["path"] or "$")
    if not (unknown and owner):
        return ""
    like = get_close_matches(unknown["name"][:LONGEST_SHOWN], owner.__struct_encode_fields__, n=1)
    return f"; did you mean `{like[0]}`?" if like else ""


def _struct_at(kind: type[msgspec.Struct], path: str) -> type[msgspec.Struct] | None:
    """The struct at a decoder's path; None where the path leads to anything else."""
    for name in path.split(".")[1:]:
        hint = get_type_hints(kind).get(name)
        kinds = [
            one
            for one in get_args(hint) or (hint,)
            if isinstance(one, type) and issubclass(one, msgspec.Struct)
        ]
        if not kinds:
            return None
        [kind] = kinds
    return kind
