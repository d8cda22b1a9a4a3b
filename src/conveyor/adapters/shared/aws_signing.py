"""The key of AWS Signature Version 4, for headers as well as for presigned URLs."""

import hmac
from functools import lru_cache

ALGORITHM = "AWS4-HMAC-SHA256"


@lru_cache(maxsize=8)
def signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    """The key of one day, derived once."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
