from tests.e2e.conftest import browser

__all__ = ["browser"]
