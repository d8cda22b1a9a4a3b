"""Requests as bytes: what they hold cannot become more lines than were meant."""

import pytest

from conveyor.adapters.http.client.request import fields, request

OWN = "Host: gateway.example\r\n"


def test_a_get_has_no_more_than_it_needs() -> None:
    whole = b"GET /v1/?a=b HTTP/1.1\r\nHost: gateway.example\r\nX-A: \xc3\xbc\r\n\r\n"
    assert request("get", "/v1/?a=b", OWN, {"X-A": "ü"}, None) == whole


@pytest.mark.parametrize("content", [b"a=1", b"", None])
def test_a_post_tells_its_length(content: bytes | None) -> None:
    sent = content or b""
    whole = b"POST / HTTP/1.1\r\nHost: gateway.example\r\nContent-Length: %d\r\n\r\n%b"
    assert request("POST", "/", OWN, {}, content) == whole % (len(sent), sent)


@pytest.mark.parametrize("breaking", ["\r", "\n", "\r\n", "\0"])
@pytest.mark.parametrize("place", ["method", "target", "name", "value"])
def test_nothing_can_begin_a_line_of_its_own(place: str, breaking: str) -> None:
    parts = {"method": "GET", "target": "/", "name": "X-A", "value": "a"}
    parts[place] += f"{breaking}X-B: b"
    with pytest.raises(ValueError, match="no "):
        request(parts["method"], parts["target"], OWN, {parts["name"]: parts["value"]}, None)


@pytest.mark.parametrize("name", ["", " ", "X A", "X:A", "X-Ü", "X-A ", "\tX"])
def test_a_header_has_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="no header"):
        fields({name: "a"})


@pytest.mark.parametrize("method", ["", "G T", "HEAD", "head", "CONNECT", "GÉT"])
def test_a_method_is_one_whose_answer_can_be_read(method: str) -> None:
    with pytest.raises(ValueError, match="no method"):
        request(method, "/", OWN, {}, None)


@pytest.mark.parametrize("target", ["", "/a b", "/ü", "/\x7f"])
def test_a_target_is_quoted(target: str) -> None:
    with pytest.raises(ValueError, match="no target"):
        request("GET", target, OWN, {}, None)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        request("GET", "/", OWN, {"X-A": "\ud800"}, None)
