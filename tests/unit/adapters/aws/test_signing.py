"""Our signatures are those of botocore, byte for byte."""

from datetime import UTC, datetime

import pytest
from botocore import auth
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from conveyor.adapters.aws.client import DYNAMODB, SQS, AwsService
from conveyor.adapters.aws.signing import RequestSigner
from conveyor.adapters.shared.aws_credentials import Keys

NOW = datetime(2026, 3, 2, 12, 0, 7, tzinfo=UTC)
FIXED = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
LENT = Keys("ASIAEXAMPLE", "another/secret", "a/token+of=some&kind")
BODIES = [b"", b"{}", '{"S": "naïve € 😀"}'.encode(), bytes(range(256)), b"x" * 100_000]


@pytest.mark.parametrize("keys", [FIXED, LENT])
@pytest.mark.parametrize("service", [DYNAMODB, SQS], ids=lambda service: service.name)
@pytest.mark.parametrize("host", ["dynamodb.eu-west-1.amazonaws.com", "127.0.0.1:8000"])
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_headers_are_those_of_botocore(
    keys: Keys, service: AwsService, host: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
    target = f"{service.target}.Query"
    theirs = AWSRequest(
        "POST",
        f"https://{host}/",
        data=body,
        headers={"Content-Type": service.content_type, "X-Amz-Target": target},
    )
    credentials = Credentials(keys.access_key, keys.secret_key, keys.token)
    SigV4Auth(credentials, service.name, "eu-west-1").add_auth(theirs)

    signer = RequestSigner(
        service=service.name, region="eu-west-1", host=host, content_type=service.content_type
    )
    ours = signer.headers(target, body, keys, NOW)

    assert ours == {name.lower(): value for name, value in theirs.headers.items()}


def test_a_signature_depends_on_the_body_and_on_the_day() -> None:
    signer = RequestSigner(service="sqs", region="eu-west-1", host="h", content_type="c")
    one = signer.headers("t", b"1", FIXED, NOW)["authorization"]
    assert signer.headers("t", b"1", FIXED, NOW)["authorization"] == one
    assert signer.headers("t", b"2", FIXED, NOW)["authorization"] != one
    assert signer.headers("t", b"1", FIXED, NOW.replace(day=3))["authorization"] != one
