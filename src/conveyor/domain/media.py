"""Media types of results: how a site's `Content-Type` is read, and the format and extension.

The value comes from a site that any caller may choose, and this service later sends it in a header.
So only its type and charset are kept, and only if they are tokens of RFC 9110.
"""

import re

UNLABELLED = "application/octet-stream"
OTHER = "other"  # the format of a result that no format of the contract fits
LONGEST_LABEL = 200  # characters

WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
LABEL = re.compile(rf"\s*({WORD}/{WORD})\s*(?:;.*)?", re.DOTALL)
CHARSET = re.compile(rf';\s*charset\s*=\s*"?({WORD})"?\s*(?:;|$)', re.IGNORECASE)

FORMATS = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/json": "json",
    "text/json": "json",
    "text/markdown": "markdown",
    "text/plain": "plaintext",
    "application/pdf": "pdf",
}
EXTENSIONS_OF_FORMATS = {
    "html": "html",
    "json": "json",
    "markdown": "md",
    "plaintext": "txt",
    "pdf": "pdf",
}
TYPES_OF_FORMATS = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "markdown": "text/markdown; charset=utf-8",
    "plaintext": "text/plain; charset=utf-8",
    "pdf": "application/pdf",
}
EXTENSIONS = {
    "application/atom+xml": "xml",
    "application/epub+zip": "epub",
    "application/gzip": "gz",
    "application/javascript": "js",
    "application/msword": "doc",
    "application/rss+xml": "xml",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/x-ndjson": "ndjson",
    "application/xml": "xml",
    "application/zip": "zip",
    "audio/mpeg": "mp3",
    "font/woff2": "woff2",
    "image/avif": "avif",
    "image/gif": "gif",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/webp": "webp",
    "text/css": "css",
    "text/csv": "csv",
    "text/javascript": "js",
    "text/tab-separated-values": "tsv",
    "text/xml": "xml",
    "video/mp4": "mp4",
}
# Formats that deflate does not make smaller.
COMPRESSED = frozenset({"pdf", "zip", "gz", "epub", "docx", "xlsx", "pptx", "mp3", "mp4", "woff2"})
COMPRESSED |= frozenset({"avif", "gif", "jpg", "png", "webp"})


def label(text: str | None) -> str:
    """A `Content-Type` in canonical form: the type, and the charset if there is one.

    A value that cannot be read counts as absent.
    """
    if text is None or len(text) > LONGEST_LABEL:
        return UNLABELLED
    found = LABEL.fullmatch(text)
    if found is None:
        return UNLABELLED
    charset = CHARSET.search(text)
    return found[1].lower() + (f"; charset={charset[1].lower()}" if charset else "")


def format_of(content_type: str) -> str:
    """The format that a labelled body has, as results show it."""
    kind = _kind(content_type)
    return "json" if kind.endswith("+json") else FORMATS.get(kind, OTHER)


def type_of(fmt: str, content_type: str | None) -> str:
    """The type of a body: as its site labelled it, else that of its format."""
    return content_type or TYPES_OF_FORMATS.get(fmt, UNLABELLED)


def extension(fmt: str, content_type: str | None) -> str:
    """What the name of a file with such a body ends with."""
    if known := EXTENSIONS_OF_FORMATS.get(fmt):
        return known
    kind = _kind(content_type or UNLABELLED)
    return EXTENSIONS.get(kind) or ("xml" if kind.endswith("+xml") else "bin")


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
