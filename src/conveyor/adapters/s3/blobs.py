"""Large objects in S3, each under its key. Callers upload and download them by presigned URLs."""

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from datetime import timedelta

from conveyor.adapters.s3.bucket import S3Bucket
from conveyor.ports.blobs import SignedUpload


class S3Blobs:
    is_swept = False

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket

    async def put(self, key: str, content: AsyncIterable[bytes]) -> int:
        return await self._bucket.upload(key, content)

    async def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        async for chunk in self._bucket.read(key, offset=offset):
            yield chunk

    async def length(self, key: str) -> int | None:
        return await self._bucket.length(key)

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> Sequence[str]:
        return await self._bucket.keys(prefix, limit=limit, after=after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._bucket.delete(keys)

    def sign_put(
        self, key: str, *, content_type: str, life: timedelta, length: int | None = None
    ) -> SignedUpload | None:
        # Without `If-None-Match` the URL could replace the object for as long as it is valid.
        headers = {"Content-Type": content_type, "If-None-Match": "*"}
        # Every client sends the length by itself, and browsers let nobody set it.
        bound = {} if length is None else {"Content-Length": str(length)}
        url = self._bucket.signed("PUT", key, life=life, headers=headers | bound)
        return SignedUpload(url, headers) if url else None

    def sign_get(
        self, key: str, *, life: timedelta, content_type: str, filename: str | None = None
    ) -> str | None:
        return self._bucket.signed_get(key, life=life, content_type=content_type, filename=filename)
