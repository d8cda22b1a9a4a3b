"""The handlers of operators' commands: `conveyor doctor`, `dlq` and `keys` call them.

They are not part of the public API. A request must have the token that the service writes to its
data folder, which only the owner of the process can read. Without it every path is a 404, so that
strangers cannot tell that the routes exist.
"""

import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from conveyor.api.handlers.common import NDJSON, Endpoint, check_ids, json_response
from conveyor.api.intake import read_body
from conveyor.domain.api_key import NewKey
from conveyor.domain.audit import DoctorScope
from conveyor.domain.ids import ApiKeyId, JobId, RunId
from conveyor.domain.json_bodies import decode_body
from conveyor.errors import ConveyorError, NotFound
from conveyor.ports.control_queue import DeadLetters
from conveyor.steps.api_keys import ApiKeyAdmin
from conveyor.steps.doctor.doctor import Doctor
from conveyor.steps.rotate_encryption import RotateEncryption

PREFIX = "/operator"
PAGE = 500
LARGEST_BODY = 16 * 1024

log = structlog.get_logger()


class RotationFailed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The last line of a rotation that could not continue."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminHandlers:
    doctor: Doctor
    control_queue: DeadLetters
    api_keys: ApiKeyAdmin
    rotate_encryption: RotateEncryption
    token: str

    def mounted(self) -> Mount:
        """Return the routes. The token is checked first, before even a wrong method is refused."""
        inside = Router(
            [
                Route("/doctor", self.examine),
                Route("/dlq", self.list_dead_letters),
                Route("/dlq/{message}", _by_id(self.show_dead_letter, None), methods=["GET"]),
                Route("/dlq/{message}", _by_id(self.drop_dead_letter, False), methods=["DELETE"]),
                Route(
                    "/dlq/{message}/redrive",
                    _by_id(self.redrive_dead_letter, False),
                    methods=["POST"],
                ),
                Route("/keys", self.list_keys, methods=["GET"]),
                Route("/keys", self.create_key, methods=["POST"]),
                Route("/keys/{key}", _by_id(self.revoke_key, None), methods=["DELETE"]),
                Route("/encryption/rotate", self.rotate, methods=["POST"]),
            ],
            redirect_slashes=False,
        )

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            self._check_token(Request(scope).headers.get("authorization", ""))
            await inside(scope, receive, send)

        return Mount(PREFIX, guarded)

    async def examine(self, request: Request) -> Response:
        """Return findings as lines of JSON, with progress between them and a summary at the end."""
        query = request.query_params
        wanted = DoctorScope(
            job_id=JobId(query["job"]) if "job" in query else None,
            run_id=RunId(query["run"]) if "run" in query else None,
            bodies=query.get("bodies") != "false",
        )
        return StreamingResponse(self._findings(wanted), media_type=NDJSON)

    async def list_dead_letters(self, request: Request) -> Response:
        after = request.query_params.get("after", "")
        return json_response(await self.control_queue.dead_letters(limit=PAGE, after=after))

    async def show_dead_letter(self, request: Request) -> Response:
        return json_response(
            await self.control_queue.find_dead_letter(request.path_params["message"])
        )

    async def redrive_dead_letter(self, request: Request) -> Response:
        message_id: str = request.path_params["message"]
        found = await self.control_queue.redrive(message_id)
        if found:
            log.info("control.redriven", message_id=message_id)
        return json_response(found)

    async def drop_dead_letter(self, request: Request) -> Response:
        message_id: str = request.path_params["message"]
        found = await self.control_queue.drop(message_id)
        if found:
            log.warning("control.dropped", message_id=message_id)
        return json_response(found)

    async def list_keys(self, request: Request) -> Response:
        after = request.query_params.get("after", "")
        return json_response(await self.api_keys.page(limit=PAGE, after=after))

    async def create_key(self, request: Request) -> Response:
        raw = await read_body(request, LARGEST_BODY)
        return json_response(await self.api_keys.create(decode_body(raw, NewKey)))

    async def revoke_key(self, request: Request) -> Response:
        return json_response(await self.api_keys.revoke(ApiKeyId(request.path_params["key"])))

    async def rotate(self, request: Request) -> Response:
        """Return progress as lines of JSON; the last line is the result."""
        force = request.query_params.get("force") == "true"
        return StreamingResponse(self._rotation(force=force), media_type=NDJSON)

    async def _rotation(self, *, force: bool) -> AsyncIterator[bytes]:
        try:
            async for event in self.rotate_encryption.rotate(force=force):
                yield msgspec.json.encode(event) + b"\n"
        except ConveyorError as error:
            # The status line is sent already, so the failure becomes the last line.
            yield msgspec.json.encode(RotationFailed(str(error))) + b"\n"

    async def _findings(self, wanted: DoctorScope) -> AsyncIterator[bytes]:
        async for event in self.doctor.examine(wanted):
            yield msgspec.json.encode(event) + b"\n"

    def _check_token(self, given: str) -> None:
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise NotFound("No such path")


def _by_id(serve: Endpoint, unknown: object) -> Endpoint:
    """A handler that engines need not answer where the path has a text that cannot be an id."""

    async def by_id(request: Request) -> Response:
        try:
            check_ids(request)
        except NotFound:
            return json_response(unknown)
        return await serve(request)

    return by_id
