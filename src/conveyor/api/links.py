"""Signed links to results, exports and uploads.

A link is a credential: anyone who has it may use it until it expires. These lead to the service
itself; object storage signs links of its own.
"""

import hashlib
import hmac
from datetime import datetime, timedelta
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from conveyor.domain.export import Export
from conveyor.domain.file_input import CONTENT_TYPES, UPLOAD_LIFE, FileInput
from conveyor.domain.ids import ExportId, InputId, JobId, RunId, TaskId
from conveyor.domain.task import Task
from conveyor.errors import NotFound
from conveyor.ports.clock import Clock

NOT_VALID = "This link is not valid: it was altered or is incomplete"


class Links:
    """Makes links, and checks them: `NotFound` for one that was altered or has expired."""

    def __init__(self, secret: bytes, clock: Clock, *, life: timedelta) -> None:
        self._secret = secret
        self._clock = clock
        self.life = life

    def to_result(self, base: str, job_id: JobId, task: Task) -> str:
        return self._link(base, _result(job_id, task.run_id, task.id), self._in(self.life))

    def check_result(
        self, job_id: JobId, run_id: RunId, task_id: TaskId, query: QueryParams
    ) -> None:
        self._check_link(_result(job_id, run_id, task_id), query, "list the results again")

    def to_export(self, base: str, export: Export) -> str:
        expires_at = min(self._in(self.life), export.kept_until)
        return self._link(base, _export(export.id), expires_at)

    def check_export(self, export_id: ExportId, query: QueryParams) -> None:
        self._check_link(_export(export_id), query, "ask for the export again")

    def to_file_input(self, base: str, file_input: FileInput) -> tuple[str, datetime]:
        """Return the link to upload a list to, and its expiry. It is bound to a content type."""
        expires_at = min(self._in(UPLOAD_LIFE), file_input.expires_at)
        bound = CONTENT_TYPES[file_input.spec.format]
        return self._link(base, _path_of(file_input.id), expires_at, bound), expires_at

    def check_file_input(
        self, file_input_id: InputId, content_type: str, query: QueryParams
    ) -> None:
        path = _path_of(file_input_id)
        for bound in CONTENT_TYPES.values():
            if bound != content_type and self._is_signed(path, query, bound):
                raise NotFound(
                    f"The request's `Content-Type` is `{content_type}` and must be `{bound}`: send"
                    " the headers in `upload.headers`"
                )
        self._check_link(path, query, "ask for a new file input", bound=content_type)

    def _in(self, life: timedelta) -> datetime:
        return self._clock.now() + life

    def _link(self, base: str, path: str, expires_at: datetime, bound: str = "") -> str:
        expires = int(expires_at.timestamp()) + 1  # whole seconds, rounded up
        signature = self._sign(path, expires, bound)
        return f"{base}{path}?" + urlencode({"expires": expires, "signature": signature})

    def _check_link(self, path: str, query: QueryParams, remedy: str, *, bound: str = "") -> None:
        if not self._is_signed(path, query, bound):
            raise NotFound(NOT_VALID)
        if int(query["expires"]) <= self._clock.now().timestamp():
            raise NotFound(f"This link has expired: {remedy} for a fresh one")

    def _is_signed(self, path: str, query: QueryParams, bound: str) -> bool:
        expires = query.get("expires", "")
        if not (expires.isascii() and expires.isdigit() and len(expires) < 13):
            return False
        signature = self._sign(path, int(expires), bound)
        return hmac.compare_digest(signature.encode(), query.get("signature", "").encode())

    def _sign(self, path: str, expires: int, bound: str) -> str:
        about = f"{path}?{expires}" + (f" {bound}" if bound else "")
        return hmac.new(self._secret, about.encode(), hashlib.sha256).hexdigest()


def _result(job_id: JobId, run_id: RunId, task_id: TaskId) -> str:
    return f"/_local/results/{job_id}/{run_id}/{task_id}"


def _export(export_id: ExportId) -> str:
    return f"/_local/exports/{export_id}"


def _path_of(file_input_id: InputId) -> str:
    return f"/_local/inputs/{file_input_id}"
