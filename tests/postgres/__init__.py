"""The adapters of PostgreSQL, over real servers."""

import pytest

pytest.register_assert_rewrite("conveyor.testing.contracts")
