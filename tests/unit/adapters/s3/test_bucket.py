from datetime import timedelta

import obstore
import pytest

from conveyor.adapters.s3.address import parse_address
from conveyor.adapters.s3.bucket import S3Bucket, open_bucket
from conveyor.adapters.s3.credentials import Credentials
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock
from conveyor.errors import RefusedToStart
from conveyor.testing.clock import FakeClock

KEYS = Keys("id", "secret")


@pytest.mark.parametrize(
    "text",
    ["//pages/team/a", "//my.pages", "//pages?endpoint=http://127.0.0.1:9000", "//pages"],
)
def test_requests_and_presigned_urls_go_to_the_same_place(text: str) -> None:
    address = parse_address(text, {"AWS_REGION": "eu-west-1"})
    assert address
    bucket = S3Bucket(address, Credentials(lambda: KEYS, FakeClock()), SystemClock())
    theirs = obstore.sign(bucket._store, "GET", "jobs/a", timedelta(minutes=1))
    assert theirs.partition("?")[0] == address.url_of("jobs/a")


def test_a_url_that_s3_would_end_sooner_is_not_signed() -> None:
    address = parse_address("//pages", {"AWS_REGION": "eu-west-1"})
    assert address
    credentials = Credentials(lambda: KEYS, FakeClock())
    credentials()
    bucket = S3Bucket(address, credentials, SystemClock())

    assert bucket.signed("GET", "a", life=timedelta(days=7))
    assert bucket.signed("GET", "a", life=timedelta(days=7, seconds=1)) is None


def test_a_bucket_without_a_region_takes_that_of_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    address = parse_address("//pages", {})
    assert address
    with pytest.raises(RefusedToStart, match="AWS_REGION"):
        open_bucket(address, SystemClock())
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    url = open_bucket(address, SystemClock()).signed("GET", "a", life=timedelta(hours=1))
    assert url
    assert url.startswith("https://pages.s3.eu-north-1.amazonaws.com/a?")
