"""The door for operators: what `conveyor doctor`, `dlq` and `keys` ask of a running service.

No part of the public API. It opens with the token that stands in the data folder, which only the
owner of the process can read; to anybody else it is as if it were not there.
"""

import hmac
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from conveyor.domain.finding import Wanted
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import NotFound
from conveyor.ports.graves import Graves
from conveyor.steps.doctor import Doctor

PREFIX = "/operator"
PAGE = 500
JSON = "application/json"
NDJSON = "application/x-ndjson"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    doctor: Doctor
    graves: Graves
    token: str
    others: Sequence[Route] = ()  # that are behind the same door

    def mounted(self) -> Mount:
        """The routes, behind the token: without it not even a wrong method is told."""
        inside = Router(
            [
                Route("/doctor", self.examine),
                Route("/dlq", self.list_buried),
                Route("/dlq/{duty}", self.show_buried, methods=["GET"]),
                Route("/dlq/{duty}", self.drop_buried, methods=["DELETE"]),
                Route("/dlq/{duty}/retry", self.revive_buried, methods=["POST"]),
                *self.others,
            ],
            redirect_slashes=False,
        )

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            self._check_token(Request(scope).headers.get("authorization", ""))
            await inside(scope, receive, send)

        return Mount(PREFIX, guarded)

    async def examine(self, request: Request) -> Response:
        """Findings as lines of JSON, with progress between them and a summary at the end."""
        query = request.query_params
        wanted = Wanted(
            job_id=JobId(query["job"]) if "job" in query else None,
            run_id=RunId(query["run"]) if "run" in query else None,
            bodies=query.get("bodies") != "false",
        )
        return StreamingResponse(self._lines(wanted), media_type=NDJSON)

    async def list_buried(self, request: Request) -> Response:
        after = request.query_params.get("after", "")
        return _json(await self.graves.buried(limit=PAGE, after=after))

    async def show_buried(self, request: Request) -> Response:
        return _json(await self.graves.find(request.path_params["duty"]))

    async def revive_buried(self, request: Request) -> Response:
        duty_id: str = request.path_params["duty"]
        found = await self.graves.revive(duty_id)
        if found:
            log.info("duty.revived", duty=duty_id)
        return _json(found)

    async def drop_buried(self, request: Request) -> Response:
        duty_id: str = request.path_params["duty"]
        found = await self.graves.drop(duty_id)
        if found:
            log.warning("duty.dropped", duty=duty_id)
        return _json(found)

    async def _lines(self, wanted: Wanted) -> AsyncIterator[bytes]:
        async for event in self.doctor.examine(wanted):
            yield msgspec.json.encode(event) + b"\n"

    def _check_token(self, given: str) -> None:
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise NotFound("No such path")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
