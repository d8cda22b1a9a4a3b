"""The model of costs, and the page that shows it."""

import pytest
from benchmarks import aws_model
from benchmarks.aws_model import CHARTS, DOCS, LIMITS, PRICES, USAGE, first_limit, rates


def test_the_page_shows_what_the_model_says() -> None:
    page = (DOCS / "aws-cost.md").read_text()
    assert aws_model.filled(page) == page, "run `python -m benchmarks.aws_model`"


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_are_those_of_the_model(name: str) -> None:
    assert (DOCS / name).read_text() == CHARTS[name]().svg()


def limit(shards: int, page: float = 1.0, *, segments: bool = False, is_new: bool = False) -> str:
    return first_limit(rates(shards, page, segments=segments, is_new=is_new))[0]


def test_what_breaks_first_depends_on_the_shards() -> None:
    assert limit(1, is_new=True) == "its partitions"
    assert limit(8, is_new=True) == "a new table"
    assert limit(8) == "its partitions"
    assert limit(16) == "the prefix of its pages in S3"
    assert limit(64, segments=True) == "the quota of the table"
    assert limit(8, page=10.0) == "`max_inflight`"


def test_prices_and_limits_are_those_that_the_page_names() -> None:
    page = (DOCS / "aws-cost.md").read_text()
    for value in (PRICES.write, PRICES.read):
        assert f"| {value:.3f} |" in page
    for value in (PRICES.queue, PRICES.put):
        assert f"| {value:.2f} |" in page
    for value in (LIMITS.partition_writes, LIMITS.new_table_writes, LIMITS.table_writes):
        assert f"{value:,.0f} WCU" in page
    assert f"{USAGE.cpu * 1_000:g} ms of CPU a task" in page
