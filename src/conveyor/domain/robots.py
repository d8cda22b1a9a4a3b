"""The rules of a site's robots.txt for one crawler, by RFC 9309.

`protego` matches paths: the longest rule decides, and of two equally long ones the one that
allows. It gets only the rules that apply to this crawler, up to a limit. Over a whole file it would
append each rule to each user agent of its group, which is quadratic, and try every rule with a
wildcard for each path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from protego import Protego

LARGEST = 500 * 1024  # bytes that are read; what follows is left out
# A rule beyond these bounds is left out, so that no robots.txt is expensive.
LONGEST_PATTERN = 2_048
MOST_WILDCARDS = 16  # in one pattern
MOST_WILDCARD_RULES = 1_000  # patterns with `*` or with `$` at the end
MOST_RULES = 20_000

PRODUCT = re.compile(r"[A-Za-z_-]+")
LINE = re.compile(
    r"^[ \t]*+(user-agent|allow|disallow)[ \t]*+:([^#\n]*+)", re.IGNORECASE | re.MULTILINE
)
EVERYONE = "*"
SITE = "http://site"  # rules match paths; with a host in front, `//a` is a path as well


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one crawler, parsed."""

    parsed: Protego
    weight: int  # about the bytes that they take

    def allow(self, path: str) -> bool:
        """Whether a path with its query may be fetched."""
        return self.parsed.can_fetch(SITE + path, EVERYONE)


ALLOW_ALL = Rules(Protego.parse(""), 256)


def product(agent: str) -> str:
    """The name by which a crawler looks for its rules: the beginning of its `User-Agent`."""
    found = PRODUCT.match(agent)
    return found[0].lower() if found else ""


def rules_for(name: str, text: bytes) -> Rules:
    """The rules of all groups that name a crawler, or else of those for everyone."""
    plain = text[:LARGEST].decode(errors="replace").removeprefix("\ufeff").replace("\r", "\n")
    lines = [(found[1].lower(), found[2].strip()) for found in LINE.finditer(plain)]
    agents = {_agent(value) for kind, value in lines if kind == "user-agent"}
    # A dict, because a rule that is repeated costs as much as another one.
    rules = dict.fromkeys(_bounded(_rules_of(name if name in agents else EVERYONE, lines)))
    parsed = Protego.parse("\n".join((f"user-agent: {EVERYONE}", *rules)))
    return Rules(parsed, 256 + sum(300 + 2 * len(rule) + 300 * rule.count("*") for rule in rules))


def _agent(value: str) -> str:
    return EVERYONE if value == EVERYONE else product(value)


def _rules_of(agent: str, lines: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The rules of each group that names the agent. User agents in a row head one group."""
    applies = is_heading = False
    for kind, value in lines:
        if kind == "user-agent":
            applies = (applies and is_heading) or _agent(value) == agent
            is_heading = True
        else:
            is_heading = False
            if applies:
                yield kind, value


def _bounded(rules: Iterator[tuple[str, str]]) -> Iterator[str]:
    count = with_wildcards = 0
    for kind, given in rules:
        pattern = re.sub(r"\*+", "*", given)
        wildcards = pattern.count("*")
        is_plain = not wildcards and not pattern.endswith("$")
        if len(pattern) > LONGEST_PATTERN or wildcards > MOST_WILDCARDS:
            continue
        count += 1
        with_wildcards += not is_plain
        if count <= MOST_RULES and (is_plain or with_wildcards <= MOST_WILDCARD_RULES):
            yield f"{kind}: {pattern}"
