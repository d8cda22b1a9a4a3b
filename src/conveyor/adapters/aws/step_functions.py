"""Callbacks to AWS Step Functions, by botocore in threads of its own.

Region, endpoint and credentials come from the usual places of AWS tools: variables, a profile, a
role. botocore is an optional dependency, imported only when it is used.
"""

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Self

from conveyor.errors import RefusedToStart
from conveyor.ports.step_functions import CallbackResult, RetryLater, Sent, TaskClosed

CONNECT = timedelta(seconds=3)
READ = timedelta(seconds=10)
# The state has ended, or never existed. AWS also answers `TaskTimedOut` for a token that was used
# before. `InvalidToken` is not among them: a wrong region gives that answer for every token.
CLOSED = frozenset({"TaskTimedOut", "TaskDoesNotExist"})
# Only the code of an error is reported: its message may quote the token.
CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,79}")


class AwsStepFunctions:
    """Makes each call once: retries are the responsibility of the caller."""

    def __init__(
        self, *, threads: int, connect: timedelta = CONNECT, read: timedelta = READ
    ) -> None:
        self._client = _client(threads, connect, read)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="step-functions")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close without waiting for calls in flight: they end by their own time-outs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def succeed(self, token: str, output: str) -> CallbackResult:
        return await self._call(self._client.send_task_success, taskToken=token, output=output)

    async def fail(self, token: str, *, error: str, cause: str) -> CallbackResult:
        call = self._client.send_task_failure
        return await self._call(call, taskToken=token, error=error, cause=cause)

    async def heartbeat(self, token: str) -> CallbackResult:
        return await self._call(self._client.send_task_heartbeat, taskToken=token)

    async def _call(self, call: Callable[..., object], **given: str) -> CallbackResult:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: _answer(call, given))


def _answer(call: Callable[..., object], given: dict[str, str]) -> CallbackResult:
    try:
        call(**given)
    except Exception as error:  # noqa: BLE001 - no error of the library may escape
        return _why(error)
    return Sent()


def _why(error: Exception) -> TaskClosed | RetryLater:
    """The answer for a call that raised. It must not quote the request, which holds the token."""
    answered: dict[str, Any] | None = getattr(error, "response", None)
    if not isinstance(answered, dict):
        return RetryLater(type(error).__name__)
    code = str(answered.get("Error", {}).get("Code", ""))
    if code in CLOSED:
        return TaskClosed(code)
    status = answered.get("ResponseMetadata", {}).get("HTTPStatusCode")
    name = code if CODE.fullmatch(code) else f"HTTP {status}"
    return RetryLater(name, status if isinstance(status, int) else None)


def _client(threads: int, connect: timedelta, read: timedelta) -> Any:
    try:
        import botocore.session  # noqa: PLC0415 - an extra
        from botocore.config import Config  # noqa: PLC0415 - an extra
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - an extra
    except ImportError:
        raise RefusedToStart(
            "step_functions: botocore is missing; install it with `pip install 'conveyor-batch[aws]'`, "
            "or leave the setting empty"
        ) from None
    config = Config(
        connect_timeout=connect.total_seconds(),
        read_timeout=read.total_seconds(),
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=threads,
        user_agent_extra="conveyor",
    )
    try:
        # AWS's other tools read AWS_REGION; botocore knows only AWS_DEFAULT_REGION and profiles.
        return botocore.session.Session().create_client(
            "stepfunctions", region_name=os.environ.get("AWS_REGION") or None, config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise RefusedToStart(
            f"step_functions: {error} Name the region in AWS_REGION, and check what else the "
            "AWS_* variables and the profile say"
        ) from None
