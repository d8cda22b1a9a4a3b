"""JSON bodies: cut where a cut cannot change their meaning, and refused with a message that helps.

Cutting. The decoder holds the interpreter until it has read everything it was given. So a large
body is first cut into its frame (all members but the one long list) and into slices of that list
of a few kilobytes each. Each part is decoded by itself, and other work runs in between.

Regular expressions find the cuts. They know strings and nesting and no other grammar. That is
sound: every byte of the body is in the frame, in a slice, or is a comma between two slices, and
the decoder reads each frame and slice in full. So the decoder refuses text that is not JSON,
wherever it was cut.
"""

import re
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from difflib import get_close_matches
from enum import StrEnum
from itertools import accumulate
from typing import TypeVar, get_args, get_type_hints

import msgspec

from conveyor.errors import InvalidArgument

SLICE_BYTES = 32 * 1024  # decoded at once, unless a single element is longer
DEEPEST_JSON = 32
MOST_MEMBERS = 100

Result = TypeVar("Result")
Form = TypeVar("Form", bound=msgspec.Struct)
# A computation that yields wherever other work may run.
Steps = Generator[None, None, Result]
Span = tuple[int, int]  # the first byte of a part of the body, and the first after it

# All quantifiers are possessive (`*+`): the engine never backtracks, so time is linear in the input.


def _repeated(pattern: bytes) -> bytes:
    """A pattern for any number of what the pattern matches.

    The atomic group (`(?>`) is for Python before 3.11.5, which keeps the beginning of a repetition
    that fails: https://github.com/python/cpython/issues/106052.
    """
    return rb"(?:(?>%b))*+" % pattern


STRING = rb'"[^"\\]*+%b"' % _repeated(rb'\\.[^"\\]*+')


def _text(levels: int) -> bytes:
    """A pattern for any text with at most `levels` levels of brackets.

    `re` has no recursion, so the pattern is nested as deeply as JSON may be.
    """
    run = rb'[^][{}"]*+' + _repeated(STRING + rb'[^][{}"]*+')
    inner = run
    for _ in range(levels):
        inner = run + _repeated(rb"[\[{]%b[\]}]%b" % (inner, run))
    return inner


# A value up to the next comma. A task is one level around the levels that its fields may have. One
# more level is matched, so that a task whose body is too deep is reported by its index.
RUN = rb'[^][{}",]*+' + _repeated(STRING + rb'[^][{}",]*+')
VALUE = RUN + _repeated(rb"[\[{]%b[\]}]%b" % (_text(DEEPEST_JSON + 1), RUN))
ONE_VALUE = re.compile(VALUE, re.DOTALL)
MANY_VALUES = re.compile(_repeated(VALUE + b","), re.DOTALL)
BLANK = re.compile(rb"[ \t\r\n]*+\Z")
OPENING = re.compile(rb"[ \t\r\n]*+\{")
MEMBER = re.compile(rb"[ \t\r\n]*+(%b)[ \t\r\n]*+:[ \t\r\n]*+" % STRING, re.DOTALL)
NO_BRACKETS = re.compile(rb'%b?+|[^][{}"]++' % STRING, re.DOTALL)
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
DEPTH_BYTES = 64 * 1024  # of a value without an end, examined to find the reason


class SlicedBody(msgspec.Struct, frozen=True):
    """A body in parts: its frame, in which the list is empty, and the slices of that list."""

    frame: bytes
    names: tuple[str, ...]  # of the members, each cut after LONGEST_SHOWN + 1 characters
    slices: Sequence[Span]  # elements with commas between them; a blank one is an empty list


class OverlongElement(Exception):
    """An element of the list is longer than the limit; `before` are the slices before it."""

    def __init__(self, before: Sequence[Span]) -> None:
        super().__init__()
        self.before = before


def cut(raw: bytes, name: str, *, most: int) -> Steps[SlicedBody]:
    """Cut the list that is member `name` out of a body.

    `most` bounds the bytes of one element and those of the frame. Raises `InvalidArgument`, or
    `OverlongElement`, as soon as something is longer, deeper or more than a good body can have.
    """
    names, slices, parts = list[str](), list[Span](), list[bytes]()
    opened = OPENING.match(raw)
    at = opened.end() if opened else len(raw)
    begin = at - 1 if opened else 0  # of what goes into the frame next
    while member := MEMBER.match(raw, at, at + most):
        names.append(_name(member[1]))
        if len(names) > MOST_MEMBERS:
            raise InvalidArgument(f"The body must have at most {MOST_MEMBERS} members, got more")
        at = member.end()
        if names[-1] == name and raw.startswith(b"[", at):
            if slices:
                raise field_error(name, "must be given once, got two lists")
            slices = yield from _sliced(raw, at + 1, most)
            parts.append(raw[begin : at + 1])
            begin = slices[-1][1]
            at = begin + 1
        end = _end_of_value(raw, at, most, names[-1])
        at = end + 1
        if sum(map(len, parts)) + at - begin > most:
            # At once, because there is no break between members: many long ones would take long.
            raise _overlong_frame(name, most)
        if raw[end:at] != b",":
            break
    # Anything but blanks after the body belongs to the frame, where the decoder refuses it. Cut, so
    # that the decoder is never given more than `most`.
    tail = at if BLANK.match(raw, at) else begin + most + 1
    parts.append(raw[begin:tail])
    frame = b"".join(parts)
    if len(frame) > most:
        raise _overlong_frame(name, most, "" if opened else ", and it must be an object")
    return SlicedBody(frame, tuple(names), slices)


def finish(steps: Steps[Result]) -> Result:
    """Run a computation to its end without a break."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result


def is_deeper(raw: bytes, most: int) -> bool:
    """Whether the arrays and objects of a JSON text are nested more than `most` levels deep."""
    if len(raw) <= most:
        return False
    brackets = NO_BRACKETS.sub(b"", raw)
    return max(accumulate(map(STEP.__getitem__, brackets)), default=0) > most


def _sliced(raw: bytes, at: int, most: int) -> Steps[list[Span]]:
    """The slices of the list whose first element begins at `at`; the last ends with the list."""
    slices = list[Span]()
    while True:
        many = MANY_VALUES.match(raw, at, at + SLICE_BYTES)
        last = many.end() if many else at
        end = last - 1 if last > at else _end_of_element(raw, at, most, slices)
        slices.append((at, end))
        if raw[end : end + 1] != b",":
            return slices
        at = end + 1
        yield


def _end_of_element(raw: bytes, at: int, most: int, before: Sequence[Span]) -> int:
    end = _end_of_text(raw, at, most)
    if raw[end : end + 1] in {b",", b"]", b"}"}:
        return end
    _check_depth(raw, end)
    if at + most < len(raw):
        raise OverlongElement(before)
    raise _endless(end)


def _end_of_value(raw: bytes, at: int, most: int, name: str) -> int:
    end = _end_of_text(raw, at, most)
    if raw[end : end + 1] in {b",", b"}"}:
        return end
    _check_depth(raw, end)
    if at + most < len(raw):
        raise field_error(
            name[:LONGEST_SHOWN], f"must have at most {most} bytes of JSON, got more than that"
        )
    if raw[end : end + 1] in {b"[", b"{"}:
        raise _endless(end)
    return end  # the decoder reports what is wrong


def _end_of_text(raw: bytes, at: int, most: int) -> int:
    found = ONE_VALUE.match(raw, at, at + most)
    return found.end() if found else at


def _check_depth(raw: bytes, at: int) -> None:
    if is_deeper(raw[at : at + DEPTH_BYTES], DEEPEST_JSON + 2):
        raise InvalidArgument(f"The body must have at most {DEEPEST_JSON} levels in any field")


def _overlong_frame(name: str, most: int, besides: str = "") -> InvalidArgument:
    return InvalidArgument(f"The body must have at most {most} bytes beside `{name}`{besides}")


def _endless(at: int) -> InvalidArgument:
    what = f"what begins at byte {at} does not end, or has more than {DEEPEST_JSON} levels"
    return not_json(what)


def _name(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)[: LONGEST_SHOWN + 1]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""  # the decoder refuses the frame


# Messages about bodies that cannot be accepted.

LONGEST_SHOWN = 80  # characters of a name or value that are compared or shown

# What the decoder raises for bytes that are not JSON. Invalid UTF-8 is found only where a string is
# decoded, and has its own exception. Nesting beyond Python's limit raises a RecursionError.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# msgspec says what is wrong, and where, in the text of its message only.
UNKNOWN_FIELD = re.compile(
    r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL
)
MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
WRONG_VALUE = re.compile(
    r"(?:Expected `(?P<wanted>[^`]+)`, got|Invalid enum value) `?(?P<given>.*?)`?", re.DOTALL
)
PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
INDEX = re.compile(r"\[\d+\]")
ANY_KEY = "[...]"  # a path to a value of an object with any keys, such as `metadata`
TYPES = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a decimal number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}

Fault = Callable[[str, str], InvalidArgument]  # of a field, and what is wrong with it


def field_error(field: str, what: str) -> InvalidArgument:
    """An error about one field of a body, which it names in its extras as well."""
    return InvalidArgument(f"`{field}` {what}", extras={"field": field})


def body_fault(field: str, what: str) -> InvalidArgument:
    return field_error(field, what) if field else InvalidArgument(f"The body {what}")


def fault_within(within: str, *, whole: str = "") -> Fault:
    """Errors about the object at the path `within`; `whole` names an object that is a whole body."""

    def at(field: str, what: str) -> InvalidArgument:
        return field_error(_path(within, field) or whole, what)

    return at


def _path(*names: str) -> str:
    return ".".join(filter(None, names))


def check_names(field: str, names: Sequence[str], known: Collection[str]) -> None:
    """Check the names of a query parameter that were separated by commas."""
    for name in names:
        if name not in known:
            wanted = f"must be one or more of {', '.join(known)}, separated by commas"
            given = ",".join(names)[:LONGEST_SHOWN]
            raise field_error(field, f"{wanted}, got {given!r}{nearest(name, known)}")


def nearest(name: str, known: Collection[str]) -> str:
    """A hint for a name that resembles a known one; else empty."""
    like = similar(name, known)
    return f"; did you mean `{like}`?" if like else ""


def similar(name: str, known: Collection[str]) -> str | None:
    """The known name that a name resembles most."""
    return next(iter(get_close_matches(name[:LONGEST_SHOWN], known, n=1)), None)


def brief(text: str, most: int = 300) -> str:
    """Shorten a text for comparing and showing: its beginning and its end remain."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[-most // 3 :]}"


def message_of(error: Exception) -> str:
    """A decoder's message, shortened, without msgspec's notation of paths."""
    return brief(str(error)).replace("`$.", "`").replace("`$`", "the body")


def not_json(why: str) -> InvalidArgument:
    return InvalidArgument(f"The body is not valid JSON: {why}")


def decode_body(raw: bytes, kind: type[Form], fault: Fault = body_fault) -> Form:
    """A body as a struct; `InvalidArgument` names the field at fault."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _misfit(brief(str(error)), kind, fault) from None
    except UNREADABLE as error:
        raise not_json(message_of(error)) from None


def _misfit(message: str, kind: type[msgspec.Struct], fault: Fault) -> InvalidArgument:
    """The error for a body that is JSON, but not of its type."""
    if unknown := UNKNOWN_FIELD.search(message):
        path, name = unknown["path"] or "", unknown["name"][:LONGEST_SHOWN] or '""'
        known = [
            field
            for owner in _types_at(kind, path)
            if issubclass(owner, msgspec.Struct)
            for field in owner.__struct_encode_fields__
        ]
        return fault(_path(path, name), f"is an unknown field{nearest(name, known)}")
    place = PLACE.search(message)
    path = place["path"] if place else ""
    what = message[: place.start()] if place else message
    if missing := MISSING_FIELD.fullmatch(what):
        return fault(_path(path, missing["name"]), "is required")
    wrong = _wrong_value(what, _types_at(kind, path))
    if path.endswith(ANY_KEY):
        return fault(path.removesuffix(ANY_KEY), f"is not valid: a value {wrong}")
    return fault(path, wrong)


def _wrong_value(what: str, types: Sequence[type]) -> str:
    """What a decoder's message says about a value, in the words of other errors."""
    found = WRONG_VALUE.fullmatch(what)
    if found is None:
        return f"cannot be read: {what}"
    given = TYPES.get(found["given"], found["given"])
    choices = [str(one) for kind in types if issubclass(kind, StrEnum) for one in kind]
    if choices:
        hint = "" if found["wanted"] else nearest(given.strip("'\""), choices)
        is_list = "array" in str(found["wanted"]).split(" | ")
        must = "an array of values from" if is_list else "one of"
        return f"must be {must} {', '.join(choices)}, got {given}{hint}"
    # Without null: a caller who gives a value does not mean to leave the field out.
    wanted = [TYPES.get(one, one) for one in str(found["wanted"]).split(" | ") if one != "null"]
    return f"must be {' or '.join(wanted)}, got {given}"


def _types_at(kind: type[msgspec.Struct], path: str) -> Sequence[type]:
    """The types that the value at a decoder's path may have."""
    types: list[type] = [kind]
    for name in filter(None, INDEX.sub("", path).split(".")):
        hints = [get_type_hints(one).get(name) for one in types if issubclass(one, msgspec.Struct)]
        types = [one for hint in hints for one in _types_of(hint)]
    return types


def _types_of(hint: object) -> Iterator[type]:
    """The types in a hint such as `tuple[Weekday, ...] | None`."""
    if isinstance(hint, type):
        yield hint
    for inner in get_args(hint):
        yield from _types_of(inner)
