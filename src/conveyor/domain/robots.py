"""What a site's robots.txt lets a crawler fetch, by RFC 9309: the longest match wins, and of two as
long the one that allows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LARGEST = 500 * 1024  # bytes that are read; what follows is left out
# So that nobody's robots.txt keeps us busy: rules beyond these are left out.
LONGEST_PATTERN = 2_048
MOST_STARS = 16  # in one pattern
MOST_STARRED = 1_000  # patterns that have one

PRODUCT = re.compile(r"[A-Za-z_-]+")
LINE = re.compile(r"[ \t]*+([A-Za-z-]++)[ \t]*+:([^#]*+)")
LINE_END = re.compile(r"\r\n?|\n")
ENCODED = re.compile(r"%([0-9A-Fa-f]{2})")
UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
EVERYONE = "*"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one crawler. Empty ones allow everything."""

    plain: dict[str, bool] = field(default_factory=dict)  # beginnings of paths -> whether allowed
    lengths: tuple[int, ...] = ()  # of those, the longest first
    starred: tuple[tuple[str, bool], ...] = ()  # patterns, the longest first

    @property
    def weight(self) -> int:
        """Bytes they take, more or less."""
        return 256 + sum(len(one) + 120 for one in (*self.plain, *(one for one, _ in self.starred)))

    def allow(self, path: str) -> bool:
        """Whether a path with its query may be fetched."""
        path = normal(path)
        length, allowed = self._plain_match(path)
        for pattern, allows in self.starred:
            if len(pattern) < length:
                break
            if (len(pattern) > length or allows) and _matches(pattern, path):
                length, allowed = len(pattern), allows or (allowed and len(pattern) == length)
        return allowed

    def _plain_match(self, path: str) -> tuple[int, bool]:
        for length in self.lengths:
            allowed = self.plain.get(path[:length])
            if allowed is not None and length <= len(path):
                return length, allowed
        return 0, True


ALLOW_ALL = Rules()


def product(agent: str) -> str:
    """The name by which a crawler looks for its rules: how its `User-Agent` begins."""
    found = PRODUCT.match(agent)
    return found[0].lower() if found else ""


def rules_for(name: str, text: bytes) -> Rules:
    """The rules of all groups that name a crawler, or else of those for everyone."""
    ours: list[tuple[str, bool]] = []
    everyones: list[tuple[str, bool]] = []
    is_named = False
    for agents, pattern, allows in _grouped(text[:LARGEST].decode(errors="replace")):
        is_named = is_named or name in agents
        if pattern and name in agents:
            ours.append((pattern, allows))
        if pattern and EVERYONE in agents:
            everyones.append((pattern, allows))
    return _sorted(ours if is_named else everyones)


def normal(path: str) -> str:
    """A path as it is compared: what need not be encoded is not, and the rest in capitals."""
    if path.isascii() and "%" not in path:
        return path
    plain = "".join(
        one if one.isascii() else "".join(f"%{byte:02X}" for byte in one.encode(errors="replace"))
        for one in path
    )
    return ENCODED.sub(_decoded, plain)


def _decoded(found: re.Match[str]) -> str:
    byte = int(found[1], 16)
    return chr(byte) if byte in UNRESERVED else found[0].upper()


def _grouped(text: str) -> Iterator[tuple[set[str], str, bool]]:
    """Each rule with the crawlers it is for; a group without rules yields an empty one."""
    agents: set[str] = set()
    is_heading = False
    for line in LINE_END.split(text.removeprefix("\ufeff")):
        found = LINE.match(line)
        if not found:
            continue
        kind, value = found[1].lower(), found[2].strip()
        if kind == "user-agent":
            agents = agents if is_heading else set()
            agents.add(EVERYONE if value == EVERYONE else product(value))
            is_heading = True
            yield agents, "", True
        elif kind in {"allow", "disallow"}:
            is_heading = False
            yield agents, value, kind == "allow"


def _sorted(rules: list[tuple[str, bool]]) -> Rules:
    plain: dict[str, bool] = {}
    starred: dict[str, bool] = {}
    for given, allows in rules:
        pattern = re.sub(r"\*+", "*", normal(given))
        if len(pattern) > LONGEST_PATTERN or pattern.count("*") > MOST_STARS:
            continue
        if "*" not in pattern and not pattern.endswith("$"):
            plain[pattern] = allows or plain.get(pattern, False)
        elif len(starred) < MOST_STARRED or pattern in starred:
            starred[pattern] = allows or starred.get(pattern, False)
    return Rules(
        plain,
        tuple(sorted({len(one) for one in plain}, reverse=True)),
        tuple(sorted(starred.items(), key=lambda one: len(one[0]), reverse=True)),
    )


def _matches(pattern: str, path: str) -> bool:
    """Whether a path begins as the pattern says: `*` is anything, `$` at its end the path's end."""
    is_whole = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    if not others:
        return at == len(path) or not is_whole
    *between, last = others
    for part in between:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    if is_whole:
        return len(path) - len(last) >= at and path.endswith(last)
    return path.find(last, at) >= 0
