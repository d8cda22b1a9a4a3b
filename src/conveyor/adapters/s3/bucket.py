"""Objects of one bucket below a prefix, through obstore: deadlines, retries and errors.

Every call has a deadline. Failed connections, 5xx answers, `SlowDown` among them, and reads that
time out are repeated up to three times, with back-off. Objects appear whole: by one PUT, or by a
multipart upload that is aborted if it fails.
"""

import asyncio
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import structlog
from msgspec.structs import replace
from obstore import get_ranges_async
from obstore.exceptions import BaseError
from obstore.store import S3Store

from conveyor.adapters.s3.address import S3Address
from conveyor.adapters.s3.credentials import Credentials
from conveyor.adapters.s3.signing import LONGEST, presigned
from conveyor.adapters.shared.aws_credentials import usual_credentials, usual_region
from conveyor.errors import NotFound, StorageFull, Unavailable
from conveyor.ports.clock import Clock

ENGINE = "s3"  # the name in errors
REQUEST = timedelta(seconds=30)  # one try
RETRYING = timedelta(seconds=30)  # from the first try on; a further one may still take `REQUEST`
CALL = 75.0  # seconds, all tries together
RETRIES = 3
# Of a multipart upload: S3 may take minutes to put its parts together, without an answer.
UPLOAD_REQUEST = timedelta(minutes=3)
UPLOAD_RETRYING = timedelta(minutes=4)
CONNECT = timedelta(seconds=3)
WHOLE = 8 * 1024 * 1024  # bytes that are stored by one PUT
PART = 12 * 1024 * 1024  # of a multipart upload, of 10,000 parts: 117 GiB
PARTS_AT_ONCE = 2
AHEAD = 2  # chunks of a stream that wait to be sent
FIRST_READ = 512 * 1024  # most objects are read by one GET
READ = 4 * 1024 * 1024
PAGE = 1_000  # keys that S3 lists at a time
AT_ONCE = 64  # calls under way; further ones wait
MARK = "upload"  # metadata of an object that tells which multipart upload stored it

STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})")
CODE = re.compile(r"<Code>(\w+)</Code>")
REQUEST_ID = re.compile(r"<RequestId>([^<]+)</RequestId>")
FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioStorageQuotaExceeded"}

log = structlog.get_logger()

Span = tuple[int, int]  # offset and length


class S3Bucket:
    def __init__(self, address: S3Address, credentials: Credentials, clock: Clock) -> None:
        self.address = address
        self._credentials = credentials
        self._clock = clock
        self._store = _store(address, credentials, request=REQUEST, retrying=RETRYING)
        self._upload_store = _store(
            address, credentials, request=UPLOAD_REQUEST, retrying=UPLOAD_RETRYING
        )
        self._places = asyncio.Semaphore(AT_ONCE)

    async def put(self, key: str, content: bytes) -> None:
        """Store an object whose content is in memory."""
        async with self._call("put", key):
            await self._store.put_async(key, content, use_multipart=False)

    async def upload(self, key: str, content: AsyncIterable[bytes]) -> int:
        """Store a stream in constant memory; return its length."""
        chunks = aiter(content)
        head, length = bytearray(), 0
        while len(head) < WHOLE and (chunk := await anext(chunks, None)) is not None:
            head += chunk
        if len(head) < WHOLE:
            await self.put(key, bytes(head))
            return len(head)
        feed, mark = _Feed(), uuid4().hex
        sending = asyncio.ensure_future(
            self._upload_store.put_async(
                key,
                feed.chunks(),
                attributes={MARK: mark},
                chunk_size=PART,
                max_concurrency=PARTS_AT_ONCE,
            )
        )
        sending.add_done_callback(feed.close)
        try:
            chunk = bytes(head)
            del head
            while chunk is not None and not sending.done():
                length += len(chunk)
                await feed.add(chunk)
                chunk = await anext(chunks, None)
            feed.end()
        except BaseException:
            await feed.abandon(sending)
            raise
        with self._own_errors("upload", key):
            try:
                await _to_the_end(sending)
            except FileNotFoundError as error:
                # An upload that S3 does not know any more may have been completed by a request whose
                # answer was lost.
                if _found(CODE, error) != "NoSuchUpload" or await self._mark(key) != mark:
                    raise
        return length

    async def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Stream an object in ranges: a slow reader holds no connection."""
        step = FIRST_READ
        while True:
            part, size = await self._span(key, offset, offset + step)
            if part:
                yield part
            offset, step = offset + len(part), READ
            if not part or offset >= size:
                return

    async def load(self, key: str) -> bytes | None:
        """A whole object; None when there is none."""
        try:
            async with self._call("get", key):
                found = await self._store.get_async(key)
                return bytes(await found.bytes_async())
        except NotFound:
            return None

    async def load_spans(self, key: str, spans: Sequence[Span]) -> Sequence[bytes]:
        """Parts of an object, none of them empty; neighbours are read by one GET."""
        async with self._call("get", key):
            parts = await get_ranges_async(
                self._store,
                key,
                starts=[start for start, _ in spans],
                lengths=[length for _, length in spans],
            )
            return [bytes(part) for part in parts]

    async def length(self, key: str) -> int | None:
        try:
            async with self._call("head", key):
                return (await self._store.head_async(key))["size"]
        except NotFound:
            return None

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> list[str]:
        """At most `limit` keys that begin with `prefix` and sort after `after`, in order."""
        # obstore lists whole path segments. So the rest of the prefix is left to the offset and to
        # the loop below.
        folder, _, rest = prefix.rpartition("/")
        offset = max(after, prefix[:-1] if rest else "")
        listing = self._store.list(
            folder or None, offset=offset or None, chunk_size=min(limit, PAGE)
        )
        found = list[str]()
        while len(found) < limit:
            async with self._call("list", prefix):
                page = await anext(listing, None)
            if page is None:
                break
            names = [one["path"] for one in page]
            found += [name for name in names if name.startswith(prefix)]
            if names[-1] > prefix and not names[-1].startswith(prefix):
                break
        return found[:limit]

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), PAGE):
            async with self._call("delete", keys[start]):
                await self._store.delete_async(keys[start : start + PAGE])

    def signed(
        self,
        method: str,
        key: str,
        *,
        life: timedelta,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> str | None:
        """A presigned URL; None if the credentials at hand expire before it would, or S3 ends it."""
        keys = self._credentials.for_signing(life)
        if keys is None or life > LONGEST:
            return None
        return presigned(
            method,
            self.address.url_of(key),
            keys,
            self.address.region,
            now=self._clock.now(),
            life=life,
            headers=headers,
            query=query,
        )

    def signed_get(
        self, key: str, *, life: timedelta, content_type: str, filename: str | None
    ) -> str | None:
        """A presigned URL to download an object, under a content type and maybe a file name."""
        query = {"response-content-type": content_type}
        if filename:
            query["response-content-disposition"] = f'attachment; filename="{filename}"'
        return self.signed("GET", key, life=life, query=query)

    async def _mark(self, key: str) -> str | None:
        """The mark of the upload that stored an object; None for an object without one."""
        async with self._call("head", key):
            found = await self._store.get_async(key, options={"head": True})
            return found.attributes.get(MARK)

    async def _span(self, key: str, start: int, end: int) -> tuple[bytes, int]:
        """A part of an object, and the length of the whole; empty beyond its end."""
        async with self._call("get", key):
            try:
                found = await self._store.get_async(key, options={"range": (start, end)})
                return bytes(await found.bytes_async()), found.meta["size"]
            except BaseError as error:
                if _found(STATUS, error) == "416":
                    return b"", start
                raise

    @asynccontextmanager
    async def _call(self, call: str, key: str) -> AsyncIterator[None]:
        async with self._places:
            with self._own_errors(call, key):
                async with asyncio.timeout(CALL):
                    yield

    @contextmanager
    def _own_errors(self, call: str, key: str) -> Iterator[None]:
        """Translate errors of obstore, and log the request id that S3 answered with."""
        try:
            yield
        except (BaseError, OSError) as error:  # `TimeoutError` is an OSError too
            code = _found(CODE, error)
            # A write can be answered 404 too: a repeated end of a multipart upload whose first
            # answer was lost. That says nothing about an object.
            is_read = call in {"get", "head"}
            if is_read and isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
                raise NotFound("The object is gone") from error
            status = _found(STATUS, error)
            log.warning(
                "s3.failed",
                call=call,
                bucket=self.address.bucket,
                key=self.address.prefix + key,
                status=status,
                code=code,
                s3_request_id=_found(REQUEST_ID, error),
            )
            is_full = code in FULL or status == "507"
            raise (StorageFull if is_full else Unavailable)(self._why(call, error)) from error

    def _why(self, call: str, error: Exception) -> str:
        bucket, code = self.address.bucket, _found(CODE, error)
        if code == "NoSuchBucket":
            return f"{ENGINE}: the bucket {bucket} does not exist: run `conveyor migrate`"
        if isinstance(error, TimeoutError):
            return f"{ENGINE}: {call} in the bucket {bucket} took more than {CALL:.0f} seconds"
        why = " ".join(filter(None, [_found(STATUS, error), code]))
        return f"{ENGINE}: {call} in the bucket {bucket} failed: {why or _first_line(error)}"


def _store(
    address: S3Address, credentials: Credentials, *, request: timedelta, retrying: timedelta
) -> S3Store:
    return S3Store(
        address.bucket,
        prefix=address.prefix.rstrip("/") or None,
        endpoint=address.endpoint or address.url.removesuffix(f"/{address.bucket}"),
        virtual_hosted_style_request=not address.is_path_style,
        region=address.region,
        client_options={
            "allow_http": address.endpoint.startswith("http:"),
            "timeout": request,
            "connect_timeout": CONNECT,
            "default_content_type": "application/octet-stream",
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": retrying,
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
        credential_provider=credentials,
    )


class _Feed:
    """A stream that obstore reads while this process writes it, a few chunks ahead.

    obstore aborts a multipart upload when its stream raises, but not when the upload is cancelled.
    So it never reads the caller's stream itself: `abandon` makes this one raise instead.
    """

    def __init__(self) -> None:
        self._chunks = asyncio.Queue[bytes | None]()  # None is the end
        self._room = asyncio.Semaphore(AHEAD)
        self._is_abandoned = False

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self._chunks.get()) is not None and not self._is_abandoned:
            self._room.release()
            yield chunk
        if self._is_abandoned:
            raise _Abandoned

    async def add(self, chunk: bytes) -> None:
        await self._room.acquire()
        self._chunks.put_nowait(chunk)

    def end(self) -> None:
        self._chunks.put_nowait(None)

    def close(self, _reader: object) -> None:
        """Let the writer go on, which waits for a reader that has ended."""
        self._room.release()

    async def abandon(self, reader: "asyncio.Future[Any]") -> None:
        """End it by an exception, and wait until the upload is aborted."""
        self._is_abandoned = True
        self.end()
        await _settled(reader)


async def _to_the_end(sending: "asyncio.Future[Any]") -> None:
    """Wait for an upload whose stream has ended, also if the caller is cancelled.

    Nothing aborts a multipart upload whose last request is cancelled.
    """
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await _settled(sending)
        raise


async def _settled(sending: "asyncio.Future[Any]") -> None:
    # What is not aborted or completed by then is aborted by the lifecycle rule of the bucket.
    await asyncio.wait([sending], timeout=REQUEST.total_seconds())
    if sending.done() and not sending.cancelled():
        sending.exception()  # retrieved, so that it is not logged


class _Abandoned(Exception):
    """The stream of an upload broke off."""


def _found(pattern: re.Pattern[str], error: Exception) -> str | None:
    found = pattern.search(str(error))
    return found and next(filter(None, found.groups()), None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def open_bucket(address: S3Address, clock: Clock) -> S3Bucket:
    """Find credentials and region, without a call to S3. It may wait for the metadata of a machine."""
    if not address.region:
        address = replace(address, region=usual_region("s3:"))
    credentials = Credentials(usual_credentials("s3:"), clock)
    credentials()
    return S3Bucket(address, credentials, clock)
