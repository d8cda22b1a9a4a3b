"""The process that all tests of a worker fork from."""

from collections.abc import Iterator

import pytest

from tests.crash.questions import Forker, a_forker


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    with a_forker() as one:
        yield one
