"""Our signatures are those of botocore, byte for byte."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore import auth
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from conveyor.adapters.s3.signing import presigned
from conveyor.adapters.shared.aws_credentials import Keys

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
URL = "https://pages.s3.eu-west-1.amazonaws.com/jobs/a%2Bb/0000-1.00000001.X"
FIXED = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
LENT = Keys("ASIAEXAMPLE", "another/secret", "a/token+of=some&kind")


@pytest.mark.parametrize("keys", [FIXED, LENT])
@pytest.mark.parametrize(
    ("method", "headers", "query"),
    [
        ("GET", {}, {}),
        ("GET", {}, {"response-content-type": "text/html; charset=utf-8"}),
        ("GET", {}, {"response-content-disposition": 'attachment; filename="a b~1.bin"'}),
        ("PUT", {"Content-Type": "text/csv", "If-None-Match": "*"}, {}),
        ("PUT", {"Content-Type": "text/csv", "Content-Length": "17"}, {}),
    ],
)
def test_a_url_is_signed_as_botocore_signs_it(
    method: str,
    headers: dict[str, str],
    query: dict[str, str],
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
    credentials = Credentials(keys.access_key, keys.secret_key, keys.token)
    request = AWSRequest(method, URL, headers=headers, params=query)
    S3SigV4QueryAuth(credentials, "s3", "eu-west-1", expires=3600).add_auth(request)

    mine = presigned(
        method,
        URL,
        keys,
        "eu-west-1",
        now=NOW,
        life=timedelta(hours=1),
        headers=headers,
        query=query,
    )

    assert _parts(mine) == _parts(request.url)


def _parts(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    return url.partition("?")[0], dict(parse_qsl(parts.query))
