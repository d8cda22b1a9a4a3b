"""Files to download, whole or from where an earlier download was cut off."""

import re
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from conveyor.api import problems
from conveyor.errors import RangeNotSatisfiable
from conveyor.steps.export import Download

RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class Span(msgspec.Struct, frozen=True):
    """Bytes of a file, the last one not among them."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def answer(request: Request, file: Download) -> Response:
    """The file, or the one range of it that was asked for (RFC 9110)."""
    mark = f'"{file.mark}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": mark,
        "Content-Disposition": f'attachment; filename="{file.name}"',
        "X-Content-Type-Options": "nosniff",
    }
    span, status = Span(0, file.length), 200
    # A range of a file that is no longer the same is of no use to anyone.
    if request.headers.get("if-range", mark) == mark:
        asked = _range(request.headers.get("range", ""), file.length)
        if asked is None:
            return _beyond(file, request.url.path)
        if asked != span:
            span, status = asked, 206
            headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{file.length}"
    headers["Content-Length"] = str(span.length)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/zip")
    content = _cut(file.read(span.start), span.length)
    return StreamingResponse(content, status, headers, media_type="application/zip")


def _range(text: str, length: int) -> Span | None:
    """What a `Range` asks for: all when it is none of ours to understand; None when it is empty."""
    found = RANGE.fullmatch(text.strip())
    if found is None or found[1] == found[2] == "":
        return Span(0, length)
    first, last = found.groups()
    if first == "":  # so many from the end
        span = Span(max(length - int(last), 0), length)
    else:
        span = Span(int(first), min(int(last) + 1 if last else length, length))
        if last and int(last) < int(first):
            return Span(0, length)
    return span if span.length > 0 else None


async def _cut(content: AsyncIterator[bytes], left: int) -> AsyncIterator[bytes]:
    async for chunk in content:
        yield chunk[:left]
        left -= len(chunk)
        if left <= 0:
            return


def _beyond(file: Download, path: str) -> Response:
    error = RangeNotSatisfiable(f"The file has {file.length} bytes: the range lies beyond its end")
    response = problems.answer(error, path)
    response.headers["Content-Range"] = f"bytes */{file.length}"
    return response
