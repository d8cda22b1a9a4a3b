"""`conveyor migrate` on S3: a bucket with its rules, again and again, beside the rules of others."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from msgspec.structs import replace

from conveyor.adapters.s3.address import S3Address, parse_address
from conveyor.adapters.s3.setup import set_up_bucket
from conveyor.app.migrate import migrate
from conveyor.errors import RefusedToStart
from conveyor.settings import Settings
from tests.s3_server import S3Server

ANY = ("*",)


@pytest.fixture(
    params=["seaweedfs", "s3_of_ministack", pytest.param("s3_of_moto", marks=pytest.mark.long)]
)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def address(server: S3Server) -> S3Address:
    """A bucket that does not exist yet."""
    return server.address(bucket=f"new-{uuid4().hex[:12]}")


def test_a_bucket_is_created_with_its_rules_and_left_alone_from_then_on(
    server: S3Server, address: S3Address
) -> None:
    assert set_up_bucket(address, ANY, has_blobs=True) == [
        "created in us-east-1",
        "set the CORS rules for *",
        "set the lifecycle rules",
    ]
    rules = _lifecycle(server, address)
    assert set_up_bucket(address, ANY, has_blobs=True) == [
        "exists",
        "has the CORS rules for *",
        "has the lifecycle rules",
    ]
    assert _lifecycle(server, address) == rules


def test_rules_abort_uploads_after_a_day_and_clear_only_what_crashes_leave(
    server: S3Server, address: S3Address
) -> None:
    set_up_bucket(address, ANY, has_blobs=True)
    by_prefix = {rule["Filter"]["Prefix"]: rule for rule in _lifecycle(server, address)}
    whole, exports, lists = (address.prefix + part for part in ("", "exports/", "lists/"))
    assert by_prefix.keys() == {whole, exports, lists}
    assert by_prefix[whole]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert "Expiration" not in by_prefix[whole]
    assert by_prefix[exports]["Expiration"] == {"Days": 2}
    assert by_prefix[lists]["Expiration"] == {"Days": 30}


async def test_no_rule_expires_anything_where_only_results_are_stored(
    server: S3Server, tmp_path: Path
) -> None:
    address = server.new_address(bucket=f"new-{uuid4().hex[:12]}")
    settings = Settings(data=str(tmp_path), bodies=f"s3:{address}")
    async for _ in migrate(settings):
        pass
    place = parse_address(address)
    assert place
    [rule] = _lifecycle(server, place)
    assert "Expiration" not in rule


@pytest.mark.parametrize("has_blobs", [True, False])
def test_a_bucket_of_others_needs_a_prefix(server: S3Server, *, has_blobs: bool) -> None:
    bare = replace(server.address(bucket=f"new-{uuid4().hex[:12]}"), prefix="")
    s3 = server.client()
    s3.create_bucket(Bucket=bare.bucket)
    s3.put_object(Bucket=bare.bucket, Key="exports/theirs", Body=b"a report")

    with pytest.raises(RefusedToStart, match=rf"name a prefix, as in s3://{bare.bucket}/conveyor"):
        set_up_bucket(bare, ANY, has_blobs=has_blobs)
    set_up_bucket(replace(bare, prefix="conveyor/"), ANY, has_blobs=has_blobs)

    prefixes = [rule["Filter"]["Prefix"] for rule in _lifecycle(server, bare)]
    assert all(prefix.startswith("conveyor/") for prefix in prefixes)


def test_a_bucket_of_its_own_needs_no_prefix(server: S3Server) -> None:
    bare = replace(server.address(bucket=f"new-{uuid4().hex[:12]}"), prefix="")
    set_up_bucket(bare, ANY, has_blobs=False)
    server.client().put_object(Bucket=bare.bucket, Key="jobs/1", Body=b"page")
    assert set_up_bucket(bare, ANY, has_blobs=True)[0] == "exists"
    assert len(_lifecycle(server, bare)) == 3


def test_rules_of_others_stay(server: S3Server, address: S3Address) -> None:
    s3 = server.client()
    s3.create_bucket(Bucket=address.bucket)
    mine = {"ID": "mine", "Status": "Enabled", "Filter": {"Prefix": "logs/"}}
    mine |= {"Expiration": {"Days": 9}}
    s3.put_bucket_lifecycle_configuration(
        Bucket=address.bucket, LifecycleConfiguration={"Rules": [mine]}
    )
    page = {"AllowedMethods": ["GET"], "AllowedOrigins": ["https://mine.example"]}
    s3.put_bucket_cors(Bucket=address.bucket, CORSConfiguration={"CORSRules": [page]})

    set_up_bucket(address, ("https://app.example",), has_blobs=True)
    set_up_bucket(address, ("https://other.example",), has_blobs=True)

    assert [rule["ID"] for rule in _lifecycle(server, address)].count("mine") == 1
    origins = [
        rule["AllowedOrigins"] for rule in s3.get_bucket_cors(Bucket=address.bucket)["CORSRules"]
    ]
    assert origins == [["https://mine.example"], ["https://other.example"]]


def test_a_browser_may_upload_with_the_headers_of_a_presigned_url(seaweedfs: S3Server) -> None:
    address = seaweedfs.address(bucket=f"new-{uuid4().hex[:12]}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweedfs.environ.items():
            patch.setenv(name, value)
        set_up_bucket(address, ("https://app.example",), has_blobs=True)
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "content-type,if-none-match",
    }
    allowed = httpx.options(address.url_of("inputs/1"), headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "PUT" in allowed.headers["access-control-allow-methods"]


def test_what_may_not_be_set_up_is_refused_with_the_permissions_it_takes(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(RefusedToStart, match=r"cannot be set up: .*s3:PutBucketCORS"):
        set_up_bucket(seaweedfs.address(), ANY, has_blobs=True)


async def test_each_engine_is_migrated_once(server: S3Server, tmp_path: Path) -> None:
    address = f"s3:{server.new_address(bucket=f'new-{uuid4().hex[:12]}')}"
    settings = Settings(data=str(tmp_path), bodies=address, blobs=address)
    first = [line async for line in migrate(settings)]
    again = [line async for line in migrate(settings)]
    assert [url for url, _ in first] == ["sqlite:"] + [address.partition("?")[0]] * 3
    assert next(line for _, line in first[1:]) == "created in us-east-1"
    assert next(line for _, line in again[1:]) == "exists"
    assert (tmp_path / "conveyor.db").exists()


def _lifecycle(server: S3Server, address: S3Address) -> list[dict[str, Any]]:
    found = server.client().get_bucket_lifecycle_configuration(Bucket=address.bucket)
    rules: list[dict[str, Any]] = found["Rules"]
    return rules
