"""S3: what its servers refuse, what befalls calls to it, and how bodies lie in a bucket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timedelta

import httpx
import pytest
from structlog.testing import capture_logs

from conveyor.adapters.s3 import bucket as bucket_module
from conveyor.adapters.s3.address import Layout
from conveyor.adapters.s3.blobs import S3Blobs
from conveyor.adapters.s3.bodies import S3Bodies
from conveyor.adapters.s3.bucket import PART, RETRIES, S3Bucket
from conveyor.adapters.s3.credentials import Credentials
from conveyor.adapters.shared import body_segments
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.ids import RunId
from conveyor.errors import NotFound, StorageFull, Unavailable
from conveyor.ports.blobs import SignedUpload, as_stream
from conveyor.ports.bodies import Body, BodyName
from conveyor.testing.factories import JOB, OTHER_RUN, RUN, new_tasks
from tests.aws.s3_endpoint import (
    CUT,
    DENIED,
    FINE,
    HANG,
    HELD,
    NO_BUCKET,
    SLOW_DOWN,
    S3Endpoint,
    S3Fault,
    an_s3_endpoint,
)
from tests.harness.memory_service import until
from tests.s3_server import S3Server

LIFE = timedelta(minutes=5)
A_LIST = b"https://ok.example/1\n"
MIB = bytes(1024 * 1024)

Call = Callable[[S3Bucket], Awaitable[object]]
CALLS: dict[str, Call] = {
    "put": lambda bucket: bucket.put("a/b", b"content"),
    "head": lambda bucket: bucket.length("a/b"),
    "get": lambda bucket: bucket.load("a/b"),
    "list": lambda bucket: bucket.keys("a/", limit=9),
}


# Presigned URLs. ministack serves strangers, and moto checks no signature.


@pytest.fixture(params=["seaweedfs", "s3_of_ministack"])
def strict(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(
    params=["seaweedfs", "s3_of_ministack", pytest.param("s3_of_moto", marks=pytest.mark.long)]
)
def server(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    return server


async def test_a_signed_url_takes_one_upload_with_its_headers(server: S3Server) -> None:
    blobs = S3Blobs(server.bucket())
    upload = _signed_upload(blobs)

    assert _put(upload, A_LIST).status_code == 200
    assert _put(upload, b"another list").status_code == 412

    assert b"".join([chunk async for chunk in blobs.read("inputs/1")]) == A_LIST


@pytest.mark.parametrize(
    "changed",
    [{"Content-Type": "text/html"}, {"If-None-Match": '"1"'}],
    ids=["another type", "another condition"],
)
def test_an_upload_with_other_headers_is_refused(strict: S3Server, changed: dict[str, str]) -> None:
    upload = _signed_upload(S3Blobs(strict.bucket()))
    assert _put(upload, A_LIST, **changed).status_code == 403


def test_an_upload_without_the_condition_is_refused(strict: S3Server) -> None:
    upload = _signed_upload(S3Blobs(strict.bucket()))
    bare = SignedUpload(upload.url, {"Content-Type": "text/csv"})
    assert _put(bare, A_LIST).status_code == 403


def test_an_upload_of_another_length_than_was_signed_is_refused(strict: S3Server) -> None:
    upload = _signed_upload(S3Blobs(strict.bucket()), length=len(A_LIST))
    assert _put(upload, A_LIST + b"\n").status_code == 403
    assert _put(upload, A_LIST).status_code == 200


async def test_a_signed_url_downloads_under_its_type_and_name(server: S3Server) -> None:
    blobs = await _with_object(server)
    url = blobs.sign_get("exports/1", life=LIFE, content_type="text/x-one", filename="a b.txt")
    assert url

    answer = _get(url)
    part = _get(url, headers={"Range": "bytes=2-4"})

    assert answer.content == b"an export"
    assert answer.headers["content-type"].startswith("text/x-one")
    assert answer.headers["content-disposition"] == 'attachment; filename="a b.txt"'
    assert (part.status_code, part.content) == (206, b" ex")


async def test_a_url_is_signed_for_one_method(strict: S3Server) -> None:
    blobs = await _with_object(strict)
    url = blobs.sign_get("exports/1", life=LIFE, content_type="text/plain")
    assert url
    assert [_asked(method, url) for method in ("HEAD", "PUT", "DELETE")] == [403] * 3
    assert _get(url).content == b"an export"


async def test_an_altered_url_is_refused(strict: S3Server) -> None:
    blobs = await _with_object(strict)
    url = blobs.sign_get("exports/1", life=LIFE, content_type="text/plain")
    assert url
    for altered in (
        url.replace("exports/1", "exports/2"),
        url.replace("text%2Fplain", "text%2Fhtml"),
        url.replace("X-Amz-Expires=300", "X-Amz-Expires=301"),
        url[:-1] + ("0" if url[-1] != "0" else "1"),
    ):
        assert altered != url
        assert _get(altered).status_code == 403


async def test_a_url_is_refused_once_it_has_expired(strict: S3Server) -> None:
    past = _PastClock()
    blobs = S3Blobs(S3Bucket(strict.address(), _credentials(strict), past))
    upload = _signed_upload(blobs)
    url = blobs.sign_get("inputs/1", life=LIFE, content_type="text/plain")
    assert url
    assert _put(upload, A_LIST).status_code == 403
    assert _get(url).status_code == 403


@pytest.mark.parametrize(
    "open_to_none", ["seaweedfs", pytest.param("s3_of_moto", marks=pytest.mark.long)]
)
async def test_strangers_read_and_write_nothing(
    open_to_none: str, request: pytest.FixtureRequest
) -> None:
    server: S3Server = request.getfixturevalue(open_to_none)
    blobs = await _with_object(server)
    url = blobs.sign_get("exports/1", life=LIFE, content_type="text/plain")
    assert url
    bare = url.partition("?")[0]
    assert _get(bare).status_code == 403
    assert _put(SignedUpload(bare, {}), b"mine").status_code == 403


def test_credentials_that_end_sooner_sign_nothing(seaweedfs: S3Server) -> None:
    clock = SystemClock()
    lent = Keys("test", "test", None, clock.now() + timedelta(minutes=4))
    credentials = Credentials(lambda: lent, clock)
    credentials()
    bucket = S3Bucket(seaweedfs.address(), credentials, clock)
    bodies = S3Bodies(bucket, SystemIds(clock))

    assert S3Blobs(bucket).sign_put("a", content_type="text/csv", life=LIFE) is None
    assert S3Blobs(bucket).sign_get("a", content_type="text/csv", life=LIFE) is None
    assert bodies.sign_get("s3:a", content_type="text/html", life=LIFE) is None
    assert bodies.sign_get("s3:a", content_type="text/html", life=timedelta(minutes=1))


# Streams.


async def test_a_long_stream_is_uploaded_in_parts_and_read_in_ranges(server: S3Server) -> None:
    blobs = S3Blobs(server.bucket())
    whole = bytes(range(256)) * (2 * PART // 256) + b"the end"

    length = await blobs.put("exports/1", _chunks(whole))

    assert length == len(whole)
    assert await blobs._bucket._mark("exports/1")
    assert b"".join([chunk async for chunk in blobs.read("exports/1")]) == whole
    rest = b"".join([chunk async for chunk in blobs.read("exports/1", offset=PART)])
    assert rest == whole[PART:]


@pytest.mark.parametrize("end", [Unavailable("the stream broke"), asyncio.CancelledError()])
async def test_an_upload_that_breaks_off_is_aborted(
    seaweedfs: S3Server, end: BaseException
) -> None:
    bucket = seaweedfs.bucket()
    address = bucket.address

    async def broken() -> AsyncIterator[bytes]:
        for _ in range(2 * PART // len(MIB)):
            yield MIB
        await until(lambda: bool(_uploads(seaweedfs, address.prefix)))
        raise end

    with pytest.raises(type(end)):
        await bucket.upload("exports/1", broken())

    assert await bucket.length("exports/1") is None
    assert not _uploads(seaweedfs, address.prefix)


# Faults.


@pytest.fixture
def endpoint() -> Iterator[S3Endpoint]:
    with an_s3_endpoint() as one:
        yield one


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("fault", [SLOW_DOWN, S3Fault(500, "InternalError"), CUT], ids=repr)
async def test_a_call_that_fails_for_a_moment_is_repeated(
    endpoint: S3Endpoint, call: Call, fault: S3Fault
) -> None:
    endpoint.faults.extend([fault] * 2)
    await call(endpoint.server.bucket())
    assert len(endpoint.calls) == 3


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_that_goes_on_failing_is_unavailable(endpoint: S3Endpoint, call: Call) -> None:
    endpoint.faults.extend([SLOW_DOWN] * 9)
    with capture_logs() as logs, pytest.raises(Unavailable, match="503"):
        await call(endpoint.server.bucket())
    assert len(endpoint.calls) == 1 + RETRIES
    [line] = logs
    assert (line["event"], line["status"]) == ("s3.failed", "503")


async def test_the_request_id_of_a_failed_call_is_logged(endpoint: S3Endpoint) -> None:
    endpoint.faults.append(DENIED)
    with (
        capture_logs() as logs,
        pytest.raises(Unavailable, match=r"put .* failed: 403 AccessDenied"),
    ):
        await endpoint.server.bucket().put("a/b", b"")
    [line] = logs
    assert line["code"] == "AccessDenied"
    assert line["s3_request_id"] == "REQ-7"
    assert line["key"].endswith("/a/b")
    assert len(endpoint.calls) == 1  # what is refused is refused again


@pytest.mark.parametrize("fault", [S3Fault(507, "Full"), S3Fault(403, "QuotaExceeded")], ids=repr)
async def test_a_server_without_room_is_full(endpoint: S3Endpoint, fault: S3Fault) -> None:
    endpoint.faults.extend([fault] * 9)
    with pytest.raises(StorageFull):
        await endpoint.server.bucket().put("a/b", b"")


@pytest.mark.parametrize("call", [CALLS["get"], CALLS["list"], CALLS["put"]])
async def test_a_bucket_that_does_not_exist_is_not_a_missing_object(
    endpoint: S3Endpoint, call: Call
) -> None:
    endpoint.faults.append(NO_BUCKET)
    with pytest.raises(Unavailable, match="does not exist: run `conveyor migrate`"):
        await call(endpoint.server.bucket())


async def test_a_write_that_is_answered_404_is_unavailable(endpoint: S3Endpoint) -> None:
    """As the end of a multipart upload is whose first answer was lost."""
    endpoint.faults.append(S3Fault(404, "NoSuchUpload"))
    with pytest.raises(Unavailable, match="NoSuchUpload"):
        await endpoint.server.bucket().put("a/b", b"")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_that_is_not_answered_ends_by_its_deadline(
    endpoint: S3Endpoint, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "CALL", 0.05)
    endpoint.faults.append(HANG)
    with pytest.raises(Unavailable, match="took more than"):
        await call(endpoint.server.bucket())


async def test_an_upload_whose_parts_fail_is_unavailable(endpoint: S3Endpoint) -> None:
    endpoint.faults.extend([FINE, *[DENIED] * 9])
    with pytest.raises(Unavailable, match="AccessDenied"):
        await endpoint.server.bucket().upload("a", as_stream([MIB] * 60))


async def test_an_upload_that_is_cancelled_at_its_end_is_completed(endpoint: S3Endpoint) -> None:
    endpoint.faults.extend([*[FINE] * 3, HELD])
    task = asyncio.ensure_future(endpoint.server.bucket().upload("a", as_stream([MIB] * 13)))
    await until(lambda: len(endpoint.calls) == 4)

    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    endpoint.released.set()
    await asyncio.wait([task])

    assert task.cancelled()
    assert [call.partition(" ")[0] for call in endpoint.calls] == ["POST", "PUT", "PUT", "POST"]


async def test_the_end_of_an_upload_that_takes_too_long_is_asked_for_again(
    endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "UPLOAD_REQUEST", timedelta(milliseconds=500))
    endpoint.faults.extend([*[FINE] * 3, HANG])
    assert await endpoint.server.bucket().upload("a", as_stream([MIB] * 13)) == 13 * len(MIB)
    assert endpoint.calls[3] == endpoint.calls[4]


def test_the_end_of_an_upload_may_take_minutes_and_be_asked_for_again() -> None:
    assert timedelta(minutes=2) < bucket_module.UPLOAD_REQUEST < bucket_module.UPLOAD_RETRYING


@pytest.mark.parametrize("is_ours", [True, False], ids=["this upload", "another one"])
async def test_an_upload_whose_end_was_not_answered_is_known_by_its_mark(
    endpoint: S3Endpoint, *, is_ours: bool
) -> None:
    bucket = endpoint.server.bucket()
    endpoint.faults.extend([*[FINE] * 3, CUT, S3Fault(404, "NoSuchUpload")])

    async def content() -> AsyncIterator[bytes]:
        for _ in range(13):
            yield MIB
        await until(lambda: bool(endpoint.marks))
        if not is_ours:
            endpoint.marks.update(dict.fromkeys(endpoint.marks, "another"))

    if is_ours:
        assert await bucket.upload("a", content()) == 13 * len(MIB)
    else:
        with pytest.raises(Unavailable, match="NoSuchUpload"):
            await bucket.upload("a", content())


async def test_bodies_of_a_put_that_fails_are_removed(endpoint: S3Endpoint) -> None:
    bodies = S3Bodies(endpoint.server.bucket(), SystemIds(SystemClock()))
    endpoint.faults.append(DENIED)
    with pytest.raises(Unavailable):
        await bodies.put_many([Body(_name(n), b"page") for n in range(3)])
    puts = [call for call in endpoint.calls if call.startswith("PUT")]
    assert len(puts) == 3
    assert endpoint.calls[3:] == [call for call in endpoint.calls if "?delete" in call]
    assert len(endpoint.calls) == 4


@pytest.mark.parametrize("layout", Layout)
async def test_bodies_of_a_put_that_was_not_answered_are_removed(
    endpoint: S3Endpoint, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "CALL", 0.5)
    bodies = S3Bodies(endpoint.server.bucket(), SystemIds(SystemClock()), layout=layout)
    endpoint.faults.extend([HANG] * 2)
    with pytest.raises(Unavailable, match="took more than"):
        await bodies.put_many([Body(_name(n), b"page") for n in range(2)])
    assert endpoint.calls[-1].endswith("?delete")
    stored = {call.partition("/")[2].partition("/")[2] for call in endpoint.calls[:-1]}
    assert set(endpoint.deleted) == stored


# Bodies.


@pytest.mark.parametrize("layout", Layout)
async def test_two_workers_that_hold_one_claim_number_do_not_share_an_object(
    seaweedfs: S3Server, layout: Layout
) -> None:
    bucket = seaweedfs.bucket()
    one, other = (S3Bodies(bucket, SystemIds(SystemClock()), layout=layout) for _ in range(2))
    put = [[Body(_name(n), content) for n in range(2)] for content in (b"one", b"other")]

    dropped = await one.put_many(put[0])
    settled = await other.put_many(put[1])
    await one.remove([kept.locator for kept in dropped])

    assert list(await one.load_many([kept.locator for kept in settled])) == [b"other"] * 2
    assert list(await one.load_many([kept.locator for kept in dropped])) == [None] * 2
    assert list(await other.names(JOB, RUN, limit=9)) == [_name(0), _name(1)]


async def test_a_segment_holds_bodies_of_one_run_only(seaweedfs: S3Server) -> None:
    bucket = seaweedfs.bucket()
    bodies = S3Bodies(bucket, SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    names = [_name(n, run) for run in (RUN, OTHER_RUN) for n in range(3)]

    await bodies.put_many([Body(name, b"page") for name in names])

    keys = seaweedfs.keys(bucket.address)
    assert [key.rpartition(".")[0] for key in keys] == [
        f"jobs/{JOB}/runs/{run}/segments/00000000-00000002.3.12" for run in sorted((RUN, OTHER_RUN))
    ]
    assert await bodies.delete_run(JOB, RUN, limit=9) == 3
    assert len(seaweedfs.keys(bucket.address)) == 1


async def test_a_segment_stays_while_a_row_may_refer_to_one_of_its_bodies(
    seaweedfs: S3Server,
) -> None:
    bodies = S3Bodies(seaweedfs.bucket(), SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    kept = await bodies.put_many([Body(_name(n), b"%d" % n) for n in range(3)])

    await bodies.remove([one.locator for one in kept[:2]])

    assert list(await bodies.load_many([one.locator for one in kept])) == [b"0", b"1", b"2"]


async def test_a_page_that_is_alone_in_its_group_is_an_object_with_a_link(
    seaweedfs: S3Server,
) -> None:
    bodies = S3Bodies(seaweedfs.bucket(), SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    [alone] = await bodies.put_many([Body(_name(0), b"page")])
    [packed, _] = await bodies.put_many([Body(_name(n), b"page") for n in (1, 2)])

    url = bodies.sign_get(alone.locator, life=LIFE, content_type="text/html")
    assert url
    assert _get(url).content == b"page"
    assert bodies.sign_get(packed.locator, life=LIFE, content_type="text/html") is None


async def test_segments_have_a_largest_size(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_segments, "LARGEST_SEGMENT", 10)
    bucket = seaweedfs.bucket()
    bodies = S3Bodies(bucket, SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    contents = [b"four", b"four", b"four", b"larger than ten", b"", b"four"]

    kept = await bodies.put_many([Body(_name(n), page) for n, page in enumerate(contents)])

    assert list(await bodies.load_many([one.locator for one in kept])) == contents
    # Two of four, one of four, the large one, the last two.
    assert len(seaweedfs.keys(bucket.address)) == 4


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_names_of_segments_that_overlap_are_listed_in_order(
    seaweedfs: S3Server, size: int
) -> None:
    bodies = S3Bodies(seaweedfs.bucket(), SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    for group in ([0, 9, 5], [1], [2, 8], [3, 4, 7], [6], [10, 11]):
        await bodies.put_many([Body(_name(n), b"page") for n in group])

    listed, after = list[BodyName](), ("", -1)
    while page := await bodies.names(JOB, RUN, limit=size, after=after):
        listed += page
        after = (page[-1].task_id, page[-1].claim_no)

    assert listed == [_name(n) for n in range(12)]


async def test_what_is_not_a_body_is_listed_by_its_name(seaweedfs: S3Server) -> None:
    bucket = seaweedfs.bucket()
    bodies = S3Bodies(bucket, SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    for name in (f"{JOB}/runs/{RUN}/notes.txt", f"{JOB}/runs/{RUN}/todo.txt", "stray.txt"):
        await bucket.put(f"jobs/{name}", b"hello")
    await bodies.put_many([Body(_name(n), b"page") for n in range(2)])
    found = await bodies.names(JOB, RUN, limit=9)
    assert [(name.task_id, name.claim_no) for name in found] == [
        *((_name(n).task_id, 1) for n in range(2)),
        ("notes.txt", 0),
        ("todo.txt", 0),
    ]
    assert list(await bodies.runs_held(limit=9)) == [(JOB, RUN)]


async def test_an_empty_body_in_a_segment_that_is_gone_is_not_found(seaweedfs: S3Server) -> None:
    bodies = S3Bodies(seaweedfs.bucket(), SystemIds(SystemClock()), layout=Layout.SEGMENTS)
    kept = await bodies.put_many([Body(_name(n), b"") for n in range(2)])
    assert list(await bodies.load_many([kept[0].locator])) == [b""]
    await bodies.delete_run(JOB, RUN, limit=9)
    assert list(await bodies.load_many([kept[0].locator])) == [None]
    with pytest.raises(NotFound):
        [chunk async for chunk in bodies.read(kept[0].locator)]


@pytest.mark.parametrize("scheme", ["file", "pack"])
async def test_a_body_of_another_engine_is_gone(seaweedfs: S3Server, scheme: str) -> None:
    """As after a change of the setting `bodies`, whatever lies under a key of that name."""
    bucket = seaweedfs.bucket()
    bodies = S3Bodies(bucket, SystemIds(SystemClock()))
    locator = f"{scheme}:jobs/1"
    for key in (locator, "jobs/1"):
        await bucket.put(key, b"not the body")

    with pytest.raises(NotFound):
        [chunk async for chunk in bodies.read(locator)]
    assert list(await bodies.load_many([locator])) == [None]
    assert bodies.sign_get(locator, life=LIFE, content_type="text/html") is None
    await bodies.remove([locator])
    assert len(seaweedfs.keys(bucket.address)) == 2


class _PastClock(SystemClock):
    """A clock that is slow, so that what it signs has expired."""

    def now(self) -> datetime:
        return super().now() - 2 * LIFE


def _credentials(server: S3Server) -> Credentials:
    credentials = Credentials(lambda: Keys(server.access_key, server.secret_key), SystemClock())
    credentials()
    return credentials


def _signed_upload(blobs: S3Blobs, length: int | None = None) -> SignedUpload:
    upload = blobs.sign_put("inputs/1", content_type="text/csv", life=LIFE, length=length)
    assert upload
    return upload


def _put(upload: SignedUpload, content: bytes, **headers: str) -> httpx.Response:
    return httpx.put(upload.url, content=content, headers={**upload.headers, **headers})


def _get(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.get(url, headers=headers)


def _asked(method: str, url: str) -> int:
    return httpx.request(method, url).status_code


async def _with_object(server: S3Server) -> S3Blobs:
    blobs = S3Blobs(server.bucket())
    await blobs.put("exports/1", as_stream([b"an export"]))
    return blobs


async def _chunks(whole: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(whole), 3_000_000):
        yield whole[start : start + 3_000_000]


def _uploads(server: S3Server, prefix: str) -> list[str]:
    found = server.client().list_multipart_uploads(Bucket="conveyor-tests").get("Uploads", [])
    return [one["Key"] for one in found if one["Key"].startswith(prefix)]


def _name(index: int, run_id: RunId = RUN) -> BodyName:
    [task] = new_tasks(run_id, 1, first=index)
    return BodyName(JOB, run_id, task.id, 1)
