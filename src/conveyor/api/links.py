"""Signed links to results: they name a job, a run and a task, never storage."""

import hashlib
import hmac
from datetime import datetime, timedelta
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.task import Task
from conveyor.errors import NotFound
from conveyor.ports.clock import Clock

PREFIX = "/_local/results"


class Links:
    """Makes links and checks them."""

    def __init__(self, secret: bytes, clock: Clock, *, life: timedelta) -> None:
        self._secret = secret
        self._clock = clock
        self._life = life

    def to_result(self, base: str, job_id: JobId, task: Task) -> str:
        path = f"{PREFIX}/{job_id}/{task.run_id}/{task.id}"
        expires = _seconds(self._clock.now() + self._life)
        return f"{base}{path}?" + urlencode(
            {"expires": expires, "signature": self._sign(path, expires)}
        )

    def check(self, job_id: JobId, run_id: RunId, task_id: TaskId, query: QueryParams) -> None:
        """Refuse a link that was altered or has expired."""
        expires = query.get("expires", "")
        if not (expires.isascii() and expires.isdigit() and len(expires) < 13):
            raise NotFound("No such result")
        signature = self._sign(f"{PREFIX}/{job_id}/{run_id}/{task_id}", int(expires))
        if not hmac.compare_digest(signature.encode(), query.get("signature", "").encode()):
            raise NotFound("No such result")
        if int(expires) <= self._clock.now().timestamp():
            raise NotFound("This link has expired: list the results again for a fresh one")

    def _sign(self, path: str, expires: int) -> str:
        return hmac.new(self._secret, f"{path}?{expires}".encode(), hashlib.sha256).hexdigest()


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp()) + 1
