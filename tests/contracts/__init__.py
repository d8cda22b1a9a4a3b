"""Every adapter against the contract of its port."""

import pytest

pytest.register_assert_rewrite("conveyor.testing.contracts")
