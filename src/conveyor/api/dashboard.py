"""The dashboard: a page of the public API's caller, served with its scripts from local files."""

from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from conveyor.domain.file_input import UPLOAD_LIFE
from conveyor.ports.blobs import Blobs

ASSETS = Path(__file__).parent / "assets"
# A browser asks each time whether its copy is current: a page that is loaded after an upgrade has no
# file of the release before. One that was open meanwhile may mix them, until it is loaded again.
REVALIDATE = {"Cache-Control": "no-cache"}
# The key of the README and the tutorial, so that jobs submitted by their commands are shown.
DEFAULT_KEY = "my-key"
NO_DEFAULT_KEY = '<meta name="default-key" content="">'
POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "frame-src blob:",  # a scraped page, in a sandbox
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)


class Dashboard:
    """The routes of the dashboard. `blobs` tells where browsers upload lists to.

    With `has_default_key` browsers sign in by themselves.
    """

    def __init__(self, blobs: Blobs, *, has_default_key: bool = False) -> None:
        self._blobs = blobs
        self._has_default_key = has_default_key

    def routes(self) -> list[Route | Mount]:
        files = RevalidatedFiles(directory=ASSETS / "dashboard")
        return [Route("/", self.page), Mount("/assets", files)]

    async def page(self, _: Request) -> Response:
        connect = " ".join(("connect-src 'self'", *self._storage_origins()))
        policy = {"Content-Security-Policy": "; ".join((*POLICY, connect))}
        return self.html(ASSETS / "dashboard.html", policy)

    def html(self, file: Path, policy: dict[str, str]) -> Response:
        """Return a page. It names the default key only where no key is sent to a gateway."""
        text = file.read_text(encoding="utf-8")
        if self._has_default_key:
            text = text.replace(NO_DEFAULT_KEY, NO_DEFAULT_KEY.replace('""', f'"{DEFAULT_KEY}"'))
        return HTMLResponse(text, headers=REVALIDATE | policy)

    def _storage_origins(self) -> list[str]:
        """Return the origin of upload links, where the storage signs them itself."""
        signed = self._blobs.sign_put("origin", content_type="text/plain", life=UPLOAD_LIFE)
        if signed is None:
            return []
        url = urlsplit(signed.url)
        return [f"{url.scheme}://{url.netloc}"]


class RevalidatedFiles(StaticFiles):
    """The files of a folder, which a browser asks for again on each load."""

    def file_response(self, *given: object, **named: object) -> Response:
        response = super().file_response(*given, **named)  # type: ignore[arg-type]
        response.headers.update(REVALIDATE)
        return response
