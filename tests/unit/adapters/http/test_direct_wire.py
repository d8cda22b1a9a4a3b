"""The direct gateway's wire: where redirects lead, and what goes along."""

import pytest

from conveyor.adapters.http import direct_wire
from conveyor.adapters.http.client.transport import Denied
from conveyor.adapters.http.direct_wire import Visit
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.ports.gateway import PageRequest

PORTS = {80, 443, 8080}
SECRET = {"Cookie": "s"}


def visit(url: str, **more: object) -> Visit:
    return direct_wire.first(PageRequest(url=url, gateway_key="k", **more), PORTS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "server", "target"),
    [
        ("http://a.example/b?c", ("a.example", 80, "a.example", False), "/b?c"),
        ("https://a.example", ("a.example", 443, "a.example", True), "/"),
        ("https://a.example:8080/", ("a.example", 8080, "a.example:8080", True), "/"),
        ("http://[::1]/", ("::1", 80, "[::1]", False), "/"),
        ("http://0x7f.1:8080/", ("127.0.0.1", 8080, "127.0.0.1:8080", False), "/"),
        ("http://ü.example/ü", ("xn--tda.example", 80, "xn--tda.example", False), "/%C3%BC"),
    ],
)
def test_a_url_becomes_a_server_and_a_target(url: str, server: object, target: str) -> None:
    one = visit(url)
    assert (tuple(one.server), one.target) == (server, target)


@pytest.mark.parametrize(
    ("start", "end", "stays"),
    [
        ("http://a.example/", "/b", True),
        ("http://a.example/", "https://a.example/b", True),
        ("https://a.example/", "http://a.example/b", False),
        ("http://a.example:8080/", "https://a.example/b", False),
        ("http://a.example/", "https://a.example:8080/b", False),
        ("http://a.example/", "http://www.a.example/", False),
        ("http://a.example/", "http://a.example.b.example/", False),
        ("https://a.example/", "https://a.example:8080/", False),
    ],
)
def test_headers_stay_with_their_site(start: str, end: str, stays: bool) -> None:
    following = direct_wire.redirected(visit(start, headers=SECRET), 302, end, PORTS)
    assert following.headers == (SECRET if stays else {})


def test_what_is_posted_never_goes_from_https_to_http() -> None:
    posted = visit("https://a.example/", method="POST", body='{"a":1}')
    with pytest.raises(Denied, match="from https to http"):
        direct_wire.redirected(posted, 307, "http://a.example/", PORTS)
    assert direct_wire.redirected(posted, 302, "http://a.example/", PORTS).content is None
    assert direct_wire.redirected(posted, 307, "https://b.example/", PORTS).content == b'{"a":1}'


@pytest.mark.parametrize("url", ["", "nonsense", "http://["])
def test_what_is_no_url_cannot_be_sent(url: str) -> None:
    with pytest.raises(Unsendable):
        visit(url)


@pytest.mark.parametrize("place", ["http://a.example:25/", "ftp://a.example/", "javascript:1"])
def test_a_redirect_elsewhere_is_denied(place: str) -> None:
    with pytest.raises(Denied) as denied:
        direct_wire.redirected(visit("http://a.example/"), 302, place, PORTS)
    assert denied.value.code == "target_not_allowed"


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(Denied, match=r"never_heard_of: .* knows no such parameter"):
        direct_wire.check_params({"never_heard_of": "x"})
