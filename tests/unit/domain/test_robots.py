"""robots.txt, by RFC 9309 and the ways of sites."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain import robots
from conveyor.domain.robots import ALLOW_ALL, product, rules_for

NAME = "conveyor"


def allowed(text: str, path: str) -> bool:
    return rules_for(NAME, text.encode()).allow(path)


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        ("", "/a", True),
        ("disallow:", "/a", True),
        ("disallow: /", "/a", False),
        ("disallow: /a", "/a", False),
        ("disallow: /a", "/abc?d", False),
        ("disallow: /a", "/b", True),
        ("disallow: /a/", "/a", True),
        ("disallow: /A", "/a", True),
        ("disallow: /\nallow: /a", "/a/b", True),
        ("allow: /a\ndisallow: /a/b", "/a/b/c", False),
        ("disallow: /a\nallow: /a", "/a", True),
        ("allow: /a\ndisallow: /a", "/a", True),
        ("disallow: /*.gif$", "/x/y.gif", False),
        ("disallow: /*.gif$", "/x/y.gif?z", True),
        ("disallow: /*.gif", "/x/y.gif?z", False),
        ("disallow: /a*b*c", "/a1b2c3", False),
        ("disallow: /a*b*c", "/a1c2b3", True),
        ("disallow: /a$", "/a", False),
        ("disallow: /a$", "/ab", True),
        ("disallow: *", "/a", False),
        ("disallow: /**a", "/xa", False),
        ("disallow: /*\nallow: /$", "/", True),
        ("disallow: /*\nallow: /$", "/a", False),
        ("allow: /p\ndisallow: /*.htm", "/page.htm", False),
        ("allow: /page\ndisallow: /*.htm", "/page.htm", False),
        ("allow: /page.\ndisallow: /*.htm", "/page.htm", True),
        ("disallow: /*b\nallow: /*a", "/ab", True),
        ("disallow: /page\nallow: /*ge", "/page", False),
        ("disallow: /pag\nallow: /p*g", "/page", True),
        ("disallow: /a*a*a$", "/aa", True),
        ("disallow: /a%2Fb", "/a%2fb", False),
        ("disallow: /a%2Fb", "/a/b", True),
        ("disallow: /%7Ejoe", "/~joe", False),
        ("disallow: /~joe", "/%7ejoe", False),
        ("disallow: /ü", "/%C3%BC", False),
        ("disallow: /%c3%bc", "/%C3%BC", False),
        ("disallow : /a # not this", "/a", False),
        ("  DISALLOW:/a", "/a", False),
        ("disallow /a", "/a", True),
        ("crawl-delay: 5\ndisallow: /a", "/a", False),
    ],
)
def test_the_longest_match_decides(rules: str, path: str, expected: bool) -> None:
    assert allowed(f"User-agent: *\n{rules}\n", path) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user-agent: *\ndisallow: /\n\nuser-agent: Conveyor\ndisallow: /b", True),
        ("user-agent: CONVEYOR/2.0\ndisallow: /", False),
        ("user-agent: conveyor\nuser-agent: other\ndisallow: /", False),
        ("user-agent: other\nuser-agent: conveyor\ndisallow: /", False),
        ("user-agent: other\ndisallow: /\nuser-agent: conveyor\nallow: /", True),
        ("user-agent: conveyor\nallow: /x\n\nuser-agent: conveyor\ndisallow: /", False),
        ("user-agent: conveyor\n\nuser-agent: *\ndisallow: /", False),
        ("user-agent: *\ndisallow: /\nuser-agent: conveyor\ndisallow:", True),
        ("user-agent: conveyorbelt\ndisallow: /", True),
        ("user-agent: con\ndisallow: /", True),
        ("disallow: /", True),
        ("user-agent: other\ndisallow: /", True),
        ("\ufeffuser-agent: *\rdisallow: /", False),
        ("user-agent: *\r\ndisallow: /", False),
        ("<html><body>not found</body></html>", True),
    ],
)
def test_the_group_that_names_us_counts_or_else_that_for_everyone(
    text: str, expected: bool
) -> None:
    assert allowed(text, "/a") is expected


@pytest.mark.parametrize(
    ("agent", "name"),
    [("Conveyor", "conveyor"), ("My-Bot/1.0 (+https://a.example)", "my-bot"), ("1", "")],
)
def test_a_crawler_is_known_by_how_its_agent_begins(agent: str, name: str) -> None:
    assert product(agent) == name


def test_nothing_is_read_past_the_bound() -> None:
    text = "user-agent: *\n" + "#" * robots.LARGEST + "\ndisallow: /"
    assert allowed(text, "/a")


def test_empty_rules_allow_everything() -> None:
    assert ALLOW_ALL.allow("/anything?at=all")


@given(st.binary(max_size=300), st.text(max_size=40))
def test_nothing_a_site_says_breaks_it(text: bytes, path: str) -> None:
    rules_for(NAME, b"user-agent: *\n" + text).allow("/" + path)


@pytest.mark.parametrize(
    "line", ["disallow: /{}", "disallow: /a*a*a*a*a*a*a*a*a*a*a*a*a*{}b", "disallow: {}*b$"]
)
def test_no_rules_keep_us_busy(line: str) -> None:
    text = "user-agent: *\n" + "\n".join(line.format(one) for one in range(30_000))
    rules = rules_for(NAME, text.encode())
    began = time.process_time()
    rules.allow("/" + "a" * 2_000)
    assert time.process_time() - began < 0.25
    assert rules.weight < 8 * 1024 * 1024


@pytest.mark.parametrize("times", [1, 2])
def test_many_user_agents_are_not_expensive(times: int) -> None:
    agents = "\n".join(f"user-agent: a{one}" for one in range(5_000))
    rules = "\n".join(f"disallow: /{one}" for one in range(5_000))
    text = "\n".join([agents, rules] * times)
    began = time.process_time()
    assert rules_for(NAME, text.encode()).allow("/1")
    assert time.process_time() - began < 2.0  # it takes 30 ms; with all rules for each, 80 s


def test_rules_beyond_the_bounds_are_left_out() -> None:
    wild = "\n".join(f"disallow: /*-{one}x" for one in range(robots.MOST_WILDCARD_RULES + 1))
    assert not allowed(f"user-agent: *\n{wild}", f"/-{robots.MOST_WILDCARD_RULES - 1}x")
    assert allowed(f"user-agent: *\n{wild}", f"/-{robots.MOST_WILDCARD_RULES}x")
    assert allowed("user-agent: *\ndisallow: /" + "a" * robots.LONGEST_PATTERN, "/" + "a" * 3_000)
    assert allowed("user-agent: *\ndisallow: /" + "*a" * 17, "/" + "a" * 99)


def test_a_path_that_begins_with_two_slashes_is_a_path() -> None:
    assert not allowed("user-agent: *\ndisallow: //a/", "//a/b")
    assert allowed("user-agent: *\ndisallow: /b", "//a/b")
