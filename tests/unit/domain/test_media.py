"""Media types: labels of sites in one safe form, and what follows from them."""

import pytest

from conveyor.domain import media
from conveyor.domain.media import UNLABELLED


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("text/html", "text/html"),
        ("Text/HTML;Charset=UTF-8", "text/html; charset=utf-8"),
        (' text/plain ; format=flowed; charset="koi8-r" ', "text/plain; charset=koi8-r"),
        ("application/json; charset=utf-8; x=1", "application/json; charset=utf-8"),
        ("image/svg+xml", "image/svg+xml"),
        ("multipart/form-data; boundary=x", "multipart/form-data"),
        ("text/html; charset=", "text/html"),
        ("text/html; charset=a b", "text/html"),
        ("text/html; charset=utf-8\r\nSet-Cookie: a=b", "text/html"),
        ("text/html\ufffd", UNLABELLED),
        ("text/html, application/json", UNLABELLED),
        ("html", UNLABELLED),
        ("", UNLABELLED),
        (None, UNLABELLED),
        ("text/" + "x" * 300, UNLABELLED),
    ],
)
def test_a_label_is_kept_in_one_form_with_its_charset_alone(given: str | None, kept: str) -> None:
    assert media.label(given) == kept
    assert media.label(kept) == kept


@pytest.mark.parametrize(
    ("content_type", "fmt", "extension"),
    [
        ("text/html; charset=koi8-r", "html", "html"),
        ("application/xhtml+xml", "html", "html"),
        ("application/json", "json", "json"),
        ("application/ld+json; charset=utf-8", "json", "json"),
        ("text/markdown", "markdown", "md"),
        ("text/plain; charset=utf-8", "plaintext", "txt"),
        ("application/pdf", "pdf", "pdf"),
        ("image/png", "other", "png"),
        ("text/csv; charset=utf-8", "other", "csv"),
        ("application/xml", "other", "xml"),
        ("application/soap+xml", "other", "xml"),
        (UNLABELLED, "other", "bin"),
        ("x/y", "other", "bin"),
    ],
)
def test_format_and_extension_follow_from_the_label(
    content_type: str, fmt: str, extension: str
) -> None:
    assert media.format_of(content_type) == fmt
    assert media.extension(fmt, content_type) == extension


def test_without_a_label_the_extension_is_that_of_the_format() -> None:
    found = [media.extension(fmt, None) for fmt in ("html", "json", "markdown", "plaintext", "pdf")]
    assert found == ["html", "json", "md", "txt", "pdf"]
    assert media.extension("other", None) == media.extension("new", None) == "bin"
