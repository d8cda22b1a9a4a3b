"""Presigned URLs by AWS Signature Version 4 in the query.

obstore signs URLs too, but neither headers nor parameters of the response. A page of results has up
to 1,000 links, so the key of a day is derived once.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import quote, urlsplit

from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.shared.aws_signing import ALGORITHM, signing_key

LONGEST = timedelta(days=7)  # that S3 accepts


def presigned(
    method: str,
    url: str,
    keys: Keys,
    region: str,
    *,
    now: datetime,
    life: timedelta,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
) -> str:
    """The URL with a signature for one method, until `life` from now.

    A client that uses it must send the headers as given.
    """
    at = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    address = urlsplit(url)
    signed = {name.lower(): value for name, value in (headers or {}).items()}
    signed["host"] = address.netloc
    names = ";".join(sorted(signed))
    parameters = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key}/{scope}",
        "X-Amz-Date": at,
        "X-Amz-Expires": str(int(life.total_seconds())),
        "X-Amz-SignedHeaders": names,
        **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
        **(query or {}),
    }
    text = "&".join(f"{_quoted(name)}={_quoted(parameters[name])}" for name in sorted(parameters))
    request = "\n".join(
        [
            method,
            address.path,
            text,
            *(f"{name}:{signed[name].strip()}" for name in sorted(signed)),
            "",
            names,
            "UNSIGNED-PAYLOAD",
        ]
    )
    digest = hashlib.sha256(request.encode()).hexdigest()
    about = f"{ALGORITHM}\n{at}\n{scope}\n{digest}"
    key = signing_key(keys.secret_key, at[:8], region, "s3")
    return f"{url}?{text}&X-Amz-Signature={hmac.new(key, about.encode(), 'sha256').hexdigest()}"


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
