from datetime import timedelta

import pytest
from botocore.exceptions import CredentialRetrievalError

from conveyor.adapters.s3.credentials import ASK_AGAIN, Credentials
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.errors import Unavailable
from conveyor.testing.clock import FakeClock

MINUTE = timedelta(minutes=1)


def test_credentials_that_never_expire_sign_for_any_time() -> None:
    credentials = Credentials(lambda: Keys("id", "secret"), FakeClock())
    assert credentials.for_signing(MINUTE) is None  # nothing is known yet
    credentials()
    assert credentials.for_signing(timedelta(days=7)) == Keys("id", "secret")


def test_credentials_that_expire_sign_only_what_expires_before_them() -> None:
    clock = FakeClock()
    lent = Keys("id", "secret", "token", clock.now() + 40 * MINUTE)
    credentials = Credentials(lambda: lent, clock)
    credentials()

    assert credentials.for_signing(timedelta(hours=24)) is None
    assert credentials.for_signing(30 * MINUTE) == lent
    clock.advance(11 * MINUTE)
    assert credentials.for_signing(30 * MINUTE) is None


def test_credentials_of_a_session_whose_end_is_unknown_sign_nothing() -> None:
    credentials = Credentials(lambda: Keys("id", "secret", "token"), FakeClock())
    credentials()
    assert credentials.for_signing(MINUTE) is None


def test_refreshed_credentials_are_used_as_soon_as_they_are_asked_for() -> None:
    clock = FakeClock()
    first, second = (Keys(name, "s", "t", clock.now() + 60 * MINUTE) for name in ("a", "b"))
    given = iter([first, second])
    credentials = Credentials(lambda: next(given), clock)

    told = credentials()
    assert told["expires_at"] == clock.now() + ASK_AGAIN  # long before they end
    credentials()

    assert credentials.for_signing(MINUTE) == second


def test_a_source_that_gives_none_is_unavailable() -> None:
    def source() -> Keys:
        raise CredentialRetrievalError(provider="container-role", error_msg="no answer")

    with pytest.raises(Unavailable, match="no AWS credentials"):
        Credentials(source, FakeClock())()
