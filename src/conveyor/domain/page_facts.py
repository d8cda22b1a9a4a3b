"""Facts about a page besides its content: status, duration and final URL."""

import can_ada
import msgspec

LONGEST_FINAL_URL = 2_048  # characters; a longer one is not stored


class PageFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a call says about its page; None where that is unknown."""

    http_status: int | None = None  # of the target; a gateway may not pass it on
    duration_ms: int | None = None  # of the call
    final_url: str | None = None  # after redirects, as `final_url` returns it


NO_FACTS = PageFacts()


def with_duration(facts: PageFacts, seconds: float) -> PageFacts:
    """The facts of a call with its duration."""
    return PageFacts(
        http_status=facts.http_status,
        duration_ms=round(seconds * 1000),
        final_url=facts.final_url,
    )


def final_url(requested: str, reached: str | None) -> str | None:
    """The URL of a page after redirects, without user, password and fragment.

    None if it is the URL that was requested, is unknown, is not one of http or https, or is longer
    than `LONGEST_FINAL_URL`.
    """
    if reached is None or reached == requested:
        return None
    try:
        here, there = _bare(can_ada.parse(requested)), _bare(can_ada.parse(reached))
    except ValueError:
        return None
    is_stored = there.startswith(("http:", "https:")) and len(there) <= LONGEST_FINAL_URL
    return there if is_stored and there != here else None


def _bare(url: can_ada.URL) -> str:
    return f"{url.protocol}//{url.host}{url.pathname}{url.search}"
