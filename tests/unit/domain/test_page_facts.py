"""Facts about pages, in the form in which they are stored."""

import pytest

from conveyor.domain.page_facts import LONGEST_FINAL_URL, PageFacts, final_url, with_duration


@pytest.mark.parametrize(
    ("requested", "reached", "stored"),
    [
        ("https://a.example/", None, None),
        ("https://a.example/", "https://a.example/", None),
        ("https://a.example/", "HTTPS://A.example:443", None),
        ("https://me:secret@a.example/x#top", "https://a.example/x", None),
        ("https://a.example/", "https://me:secret@a.example/#top", None),
        ("https://a.example/", "https://a.example/b?c=d#e", "https://a.example/b?c=d"),
        (
            "http://a.example/",
            "https://me:secret@b.example:8443/ü",
            "https://b.example:8443/%C3%BC",
        ),
        ("https://a.example/", "not a URL", None),
        ("https://a.example/", "data:text/html,secret", None),
        ("https://a.example/", "", None),
    ],
)
def test_a_final_url_is_stored_bare_and_only_if_it_is_another(
    requested: str, reached: str | None, stored: str | None
) -> None:
    assert final_url(requested, reached) == stored


def test_a_final_url_that_is_too_long_is_not_stored() -> None:
    longest = "https://b.example/" + "c" * (LONGEST_FINAL_URL - len("https://b.example/"))
    assert final_url("https://a.example/", longest) == longest
    assert final_url("https://a.example/", longest + "c") is None


def test_the_duration_of_a_call_is_in_whole_milliseconds() -> None:
    facts = PageFacts(http_status=203, final_url="https://a.example/at-last")
    assert with_duration(facts, 0.0404) == PageFacts(
        http_status=203, duration_ms=40, final_url="https://a.example/at-last"
    )
