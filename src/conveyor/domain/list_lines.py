"""Bytes of a list become lines, however they are cut into chunks, and never much is held."""

from enum import StrEnum
from itertools import accumulate

import msgspec

LONGEST_SHOWN = 200  # characters of a bad line that are told
MORSEL = 64 * 1024  # as much is cut into lines at once
HEAD = 4 * LONGEST_SHOWN  # bytes kept of a line that is too long


class ListLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a list is held at once. Whoever goes on with a list must have the same ones."""

    line_bytes: int = 1024 * 1024
    piece_bytes: int = 1024 * 1024
    piece_lines: int = 2_000

    @property
    def morsel(self) -> int:
        """As much can hold no whole line that is too long."""
        return min(MORSEL, self.line_bytes)


class LineReason(StrEnum):
    """Why a line is no task, beside the reasons of any task."""

    LINE_TOO_LONG = "line_too_long"
    INVALID_UTF8 = "invalid_utf8"
    NUL_BYTE = "nul_byte"
    STRAY_RETURN = "stray_return"
    MALFORMED_JSON = "malformed_json"
    MISSING_COLUMN = "missing_column"
    UNTERMINATED_QUOTE = "unterminated_quote"
    STRAY_QUOTE = "stray_quote"
    FIELD_TOO_LONG = "field_too_long"


class Text(msgspec.Struct, frozen=True):
    """Lines as text, those that are none left empty, with the reason why."""

    lines: list[str]
    faults: dict[int, LineReason]


class Lines:
    """Lines that are whole and wait to be read. Of those that are too long only the head is kept."""

    def __init__(self, limits: ListLimits) -> None:
        self.limits = limits
        self.ready: list[bytes] = []
        self._held = 0  # bytes of those
        self._overlong: dict[int, int] = {}  # how long they are, by their place in `ready`
        self._parts: list[bytes] = []  # of the line that is still coming
        self._size = 0
        self._is_unended = False

    def add(self, morsel: bytes) -> bool:
        """Whether a line was ended by these bytes, no more than a morsel."""
        first, *others = morsel.split(b"\n")
        self._extend(first)
        if not others:
            return False
        self._end_line()
        *whole, rest = others
        self.ready += whole
        self._held += sum(map(len, whole)) + len(whole)
        self._extend(rest)
        return True

    def finish(self) -> None:
        """There is no more: what came last is a line, though nothing ends it."""
        if self._size:
            self._is_unended = True
            self._end_line()

    def count(self) -> int:
        """How many lines make a piece, as many as there may be; 0 when it is not whole yet."""
        most, full_at = self.limits.piece_lines, self.limits.piece_bytes
        if self._held >= full_at:
            sizes = accumulate(len(line) + 1 for line in self.ready[:most])
            if full := next((n for n, size in enumerate(sizes, 1) if size >= full_at), 0):
                return full
        return most if len(self.ready) >= most else 0

    def text(self, start: int, end: int) -> Text:
        lines = self.ready[start:end]
        joined = b"\n".join(lines)
        if b"\0" not in joined and not self._overlong:
            try:
                return Text(joined.decode().split("\n"), {})
            except UnicodeDecodeError:
                pass
        return self._sorted_out(lines, start)

    def drop(self, count: int) -> int:
        """Let go of lines that were read, and tell how many bytes they were."""
        gone = self.ready[:count]
        del self.ready[:count]
        held = sum(map(len, gone)) + count
        self._held -= held
        for place, size in self._overlong.items():
            held += size - len(gone[place]) if place < count else 0
        self._overlong = {at - count: size for at, size in self._overlong.items() if at >= count}
        return held - (self._is_unended and not self.ready)

    def _sorted_out(self, lines: list[bytes], start: int) -> Text:
        texts, faults = list[str](), dict[int, LineReason]()
        for place, line in enumerate(lines):
            text, fault = _decoded(line)
            if start + place in self._overlong:
                fault = LineReason.LINE_TOO_LONG
            if fault:
                faults[place] = fault
            texts.append("" if fault else text)
        return Text(texts, faults)

    def _extend(self, part: bytes) -> None:
        was, self._size = self._size, self._size + len(part)
        if self._size <= self.limits.line_bytes:
            self._parts.append(part)
        elif was <= self.limits.line_bytes:
            kept = min(HEAD, self.limits.line_bytes)
            self._parts = [b"".join((*self._parts, part))[:kept]]

    def _end_line(self) -> None:
        if self._size > self.limits.line_bytes:
            self._overlong[len(self.ready)] = self._size
        line = b"".join(self._parts)
        self.ready.append(line)
        self._held += len(line) + 1
        self._parts, self._size = [], 0


def shown(line: bytes) -> str:
    """The beginning of a line, for a person to know it by."""
    return line[:HEAD].decode(errors="replace")[:LONGEST_SHOWN].rstrip("\r")


def _decoded(line: bytes) -> tuple[str, LineReason | None]:
    if b"\0" in line:
        return "", LineReason.NUL_BYTE
    try:
        return line.decode(), None
    except UnicodeDecodeError:
        return "", LineReason.INVALID_UTF8
