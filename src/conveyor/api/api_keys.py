"""The door for operators to keys: what `conveyor keys` asks of a running service."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from conveyor.api.intake import read_body
from conveyor.domain.api_key import NewKey
from conveyor.domain.ids import KeyId
from conveyor.domain.json_bodies import brief
from conveyor.errors import ConveyorError, InvalidArgument
from conveyor.steps.api_keys import ApiKeyAdmin
from conveyor.steps.rotate_encryption import RotateEncryption

PAGE = 500
MOST_BYTES = 16 * 1024
JSON = "application/json"
NDJSON = "application/x-ndjson"


class RotationFailed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The last line of a change that could not go on."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRoutes:
    admin: ApiKeyAdmin
    rotate_encryption: RotateEncryption

    def routes(self) -> Sequence[Route]:
        return (
            Route("/keys", self.list_keys, methods=["GET"]),
            Route("/keys", self.create_key, methods=["POST"]),
            Route("/keys/{key}", self.revoke_key, methods=["DELETE"]),
            Route("/encryption/rotate", self.rotate, methods=["POST"]),
        )

    async def list_keys(self, request: Request) -> Response:
        after = request.query_params.get("after", "")
        return _json(await self.admin.page(limit=PAGE, after=after))

    async def create_key(self, request: Request) -> Response:
        raw = await read_body(request, MOST_BYTES)
        try:
            wanted = msgspec.json.decode(raw, type=NewKey)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"That is no request for a key: {brief(str(error))}") from None
        return _json(await self.admin.create(wanted))

    async def revoke_key(self, request: Request) -> Response:
        return _json(await self.admin.revoke(KeyId(request.path_params["key"])))

    async def rotate(self, request: Request) -> Response:
        """Progress as lines of JSON, and at the end what came of it."""
        force = request.query_params.get("force") == "true"
        return StreamingResponse(self._lines(force=force), media_type=NDJSON)

    async def _lines(self, *, force: bool) -> AsyncIterator[bytes]:
        try:
            async for event in self.rotate_encryption.rotate(force=force):
                yield msgspec.json.encode(event) + b"\n"
        except ConveyorError as error:
            yield msgspec.json.encode(RotationFailed(str(error))) + b"\n"


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
