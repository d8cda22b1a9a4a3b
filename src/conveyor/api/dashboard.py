"""The dashboard: a page of the public API's caller, served with its scripts from local files."""

from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from conveyor.domain.file_input import UPLOAD_LIFE
from conveyor.ports.blobs import Blobs

ASSETS = Path(__file__).parent / "assets" / "dashboard"
# A browser asks each time whether its copy is current, so that no page mixes files of two releases.
REVALIDATE = {"Cache-Control": "no-cache"}
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
    """The routes of the dashboard. `blobs` tells where browsers upload lists to."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def routes(self) -> list[Route | Mount]:
        return [Route("/", self.page), Mount("/assets", RevalidatedFiles(directory=ASSETS))]

    async def page(self, _: Request) -> Response:
        connect = " ".join(("connect-src 'self'", *self._storage_origins()))
        policy = {"Content-Security-Policy": "; ".join((*POLICY, connect))}
        return FileResponse(ASSETS / "index.html", headers=REVALIDATE | policy)

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
