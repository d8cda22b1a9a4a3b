"""Requests as bytes: what they hold cannot become more lines than were meant."""

from collections.abc import Mapping

import pytest

from conveyor.adapters.http.client.connection import encoded
from conveyor.adapters.http.client.transport import fixed_headers, http_request

OWN = fixed_headers({"Host": "gateway.example"})


def request(method: str, target: str, headers: Mapping[str, str], content: bytes | None) -> bytes:
    return encoded(http_request(method, target, OWN, headers, content))


def test_a_get_has_no_more_than_it_needs() -> None:
    whole = b"GET /v1/?a=b HTTP/1.1\r\nHost: gateway.example\r\nX-A: \xc3\xbc\r\n\r\n"
    assert request("get", "/v1/?a=b", {"X-A": "ü"}, None) == whole


@pytest.mark.parametrize("content", [b"a=1", b"", None])
def test_a_post_tells_its_length(content: bytes | None) -> None:
    sent = content or b""
    whole = b"POST / HTTP/1.1\r\nHost: gateway.example\r\nContent-Length: %d\r\n\r\n%b"
    assert request("POST", "/", {}, content) == whole % (len(sent), sent)


@pytest.mark.parametrize("breaking", ["\r", "\n", "\r\n", "\0"])
@pytest.mark.parametrize("place", ["method", "target", "name", "value"])
def test_nothing_can_begin_a_line_of_its_own(place: str, breaking: str) -> None:
    parts = {"method": "GET", "target": "/", "name": "X-A", "value": "a"}
    parts[place] += f"{breaking}X-B: b"
    with pytest.raises(ValueError, match="must"):
        request(parts["method"], parts["target"], {parts["name"]: parts["value"]}, None)


@pytest.mark.parametrize("name", ["", " ", "X A", "X:A", "X-Ü", "X-A ", "\tX"])
def test_a_header_has_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="a header must"):
        request("GET", "/", {name: "a"}, None)


@pytest.mark.parametrize("method", ["", "G T", "HEAD", "head", "CONNECT", "GÉT"])
def test_a_method_is_one_whose_answer_can_be_read(method: str) -> None:
    with pytest.raises(ValueError, match="the method must"):
        request(method, "/", {}, None)


@pytest.mark.parametrize("target", ["", "/a b", "/ü", "/\x7f"])
def test_a_target_is_quoted(target: str) -> None:
    with pytest.raises(ValueError, match="the target must"):
        request("GET", target, {}, None)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        request("GET", "/", {"X-A": "\ud800"}, None)
