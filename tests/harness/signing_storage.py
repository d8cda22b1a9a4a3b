"""Storage in memory that signs URLs, as object storage does. Nothing answers at them."""

from datetime import timedelta

from conveyor.ports.blobs import SignedUpload
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies

HOST = "https://storage.example"


class SigningBlobs(MemoryBlobs):
    """It signs nothing that lasts longer than its credentials."""

    is_swept = False

    def __init__(self, lasts: timedelta = timedelta.max) -> None:
        super().__init__()
        self._lasts = lasts

    def sign_put(  # type: ignore[override]
        self, key: str, *, content_type: str, life: timedelta, length: int | None = None
    ) -> SignedUpload | None:
        if life > self._lasts:
            return None
        return SignedUpload(f"{HOST}/{key}?length={length}", {"Content-Type": content_type})

    def sign_get(  # type: ignore[override]
        self, key: str, *, life: timedelta, content_type: str, filename: str | None = None
    ) -> str | None:
        return _url(key, self._lasts, life, content_type, filename)


class SigningBodies(MemoryBodies):
    is_swept = False

    def __init__(self, lasts: timedelta = timedelta.max) -> None:
        super().__init__()
        self._lasts = lasts

    def sign_get(  # type: ignore[override]
        self, locator: str, *, life: timedelta, content_type: str, filename: str | None = None
    ) -> str | None:
        return _url(locator, self._lasts, life, content_type, filename)


def _url(
    key: str, lasts: timedelta, life: timedelta, content_type: str, filename: str | None
) -> str | None:
    if life > lasts:
        return None
    return f"{HOST}/{key}?life={life.total_seconds():.0f}&type={content_type}&name={filename}"
