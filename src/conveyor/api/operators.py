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

from conveyor.domain.audit import DoctorScope
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import NotFound
from conveyor.ports.control_queue import DeadLetters
from conveyor.steps.doctor.doctor import Doctor

PREFIX = "/operator"
PAGE = 500
JSON = "application/json"
NDJSON = "application/x-ndjson"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    doctor: Doctor
    control_queue: DeadLetters
    token: str
    others: Sequence[Route] = ()  # that are behind the same door

    def mounted(self) -> Mount:
        """The routes, behind the token: without it not even a wrong method is told."""
        inside = Router(
            [
                Route("/doctor", self.examine),
                Route("/dlq", self.list_dead_letters),
                Route("/dlq/{message}", self.show_dead_letter, methods=["GET"]),
                Route("/dlq/{message}", self.drop_dead_letter, methods=["DELETE"]),
                Route("/dlq/{message}/redrive", self.redrive_dead_letter, methods=["POST"]),
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
        wanted = DoctorScope(
            job_id=JobId(query["job"]) if "job" in query else None,
            run_id=RunId(query["run"]) if "run" in query else None,
            bodies=query.get("bodies") != "false",
        )
        return StreamingResponse(self._lines(wanted), media_type=NDJSON)

    async def list_dead_letters(self, request: Request) -> Response:
        after = request.query_params.get("after", "")
        return _json(await self.control_queue.dead_letters(limit=PAGE, after=after))

    async def show_dead_letter(self, request: Request) -> Response:
        return _json(await self.control_queue.find_dead_letter(request.path_params["message"]))

    async def redrive_dead_letter(self, request: Request) -> Response:
        message_id: str = request.path_params["message"]
        found = await self.control_queue.redrive(message_id)
        if found:
            log.info("control.redriven", message_id=message_id)
        return _json(found)

    async def drop_dead_letter(self, request: Request) -> Response:
        message_id: str = request.path_params["message"]
        found = await self.control_queue.drop(message_id)
        if found:
            log.warning("control.dropped", message_id=message_id)
        return _json(found)

    async def _lines(self, wanted: DoctorScope) -> AsyncIterator[bytes]:
        async for event in self.doctor.examine(wanted):
            yield msgspec.json.encode(event) + b"\n"

    def _check_token(self, given: str) -> None:
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise NotFound("No such path")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
