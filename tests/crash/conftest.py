"""The process that the tests of a file fork from."""

from collections.abc import Iterator

import pytest

from tests.crash.questions import Forker, a_forker


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    with a_forker() as one:
        yield one
