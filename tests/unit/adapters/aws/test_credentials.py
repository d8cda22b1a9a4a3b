from datetime import timedelta

import pytest
from botocore.exceptions import CredentialRetrievalError

from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.errors import Unavailable
from conveyor.testing.clock import FakeClock

MINUTE = timedelta(minutes=1)


class Source:
    """Lends credentials for an hour, each time others; or fails."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.asked = 0
        self.answers = True

    def __call__(self) -> Keys:
        self.asked += 1
        if not self.answers:
            raise CredentialRetrievalError(provider="container-role", error_msg="no answer")
        return Keys(f"id-{self.asked}", "secret", "token", self.clock.now() + 60 * MINUTE)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def source(clock: FakeClock) -> Source:
    return Source(clock)


@pytest.fixture
def keys(clock: FakeClock, source: Source) -> RefreshedKeys:
    return RefreshedKeys(source, clock)


async def test_keys_without_an_end_are_asked_for_once(clock: FakeClock) -> None:
    source = iter([Keys("id", "s")])
    keys = RefreshedKeys(lambda: next(source), clock)
    await keys.current()
    clock.advance(timedelta(days=365))
    assert await keys.current() == Keys("id", "s")


async def test_keys_are_refreshed_before_they_expire(
    clock: FakeClock, source: Source, keys: RefreshedKeys
) -> None:
    assert (await keys.current()).access_key == "id-1"
    clock.advance(45 * MINUTE)
    assert (await keys.current()).access_key == "id-1"
    clock.advance(2 * MINUTE)
    assert (await keys.current()).access_key == "id-2"


async def test_a_failed_refresh_leaves_the_old_keys_until_their_end(
    clock: FakeClock, source: Source, keys: RefreshedKeys
) -> None:
    await keys.current()
    source.answers = False
    clock.advance(50 * MINUTE)
    assert (await keys.current()).access_key == "id-1"
    assert (await keys.current()).access_key == "id-1"
    assert source.asked == 2  # not for each request
    clock.advance(MINUTE)
    assert (await keys.current()).access_key == "id-1"
    assert source.asked == 3
    clock.advance(9 * MINUTE)
    with pytest.raises(Unavailable, match="no AWS credentials"):
        await keys.current()
    source.answers = True
    assert (await keys.current()).access_key == "id-5"


async def test_keys_that_aws_calls_expired_are_asked_for_again(
    source: Source, keys: RefreshedKeys
) -> None:
    await keys.current()
    keys.discard()
    assert (await keys.current()).access_key == "id-2"


async def test_without_a_source_there_is_no_service(source: Source, keys: RefreshedKeys) -> None:
    source.answers = False
    with pytest.raises(Unavailable):
        await keys.current()
