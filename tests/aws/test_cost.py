"""What tasks cost on DynamoDB: a change that makes them dearer fails here.

`benchmarks/aws_cost.py` measures the same with larger jobs; docs/aws-cost.md has its figures.
"""

import logging
from collections.abc import Iterator

import pytest
import structlog
from benchmarks.aws_cost import (
    Figure,
    Scene,
    cpu_of_calls,
    finished,
    reading_figures,
    scenes,
    throughput_figures,
    written,
)

from tests.harness import time_lapse

SMALL = [
    Scene(page=1.0, shards=8, tasks=1_000, goal=4.3),
    Scene(page=0.05, shards=1, tasks=100, goal=4.7),
    Scene(page=1.0, shards=1, tasks=300, goal=6.5, refuses_first=True),
]


def check_cost(scene: Scene) -> None:
    service = time_lapse.run(finished(scene))
    cost = written(service, scene.tasks)
    assert cost <= scene.goal, service.fake.meter.table()
    assert cost >= 4  # or the meter missed something
    assert service.gateway.calls == scene.tasks * (2 if scene.refuses_first else 1)


@pytest.mark.parametrize("scene", SMALL, ids=str)
def test_a_task_costs_no_more_write_units_than_its_goal(scene: Scene) -> None:
    check_cost(scene)


@pytest.mark.long
@pytest.mark.parametrize("scene", scenes(), ids=str)
def test_no_kind_of_job_costs_more_write_units_than_its_goal(scene: Scene) -> None:
    check_cost(scene)


@pytest.mark.parametrize("shards", [1, 8])
def test_results_are_listed_without_reading_more_than_is_served(shards: int) -> None:
    check(reading_figures(shards, 1_000))


def test_a_job_over_eight_partitions_is_six_times_as_fast() -> None:
    check_throughput(1_000)


@pytest.mark.long
def test_a_large_job_over_eight_partitions_is_six_times_as_fast() -> None:
    check_throughput(5_000)


@pytest.fixture
def logs_as_in_a_service() -> Iterator[None]:
    """Drop the events of level DEBUG: the tests draw each of them."""
    configured = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.configure(wrapper_class=configured)


@pytest.mark.long
@pytest.mark.usefixtures("logs_as_in_a_service")
def test_the_calls_of_a_task_take_little_cpu() -> None:
    check([cpu_of_calls(2_000)])


def check_throughput(tasks: int) -> None:
    check(throughput_figures(tasks))


def check(figures: list[Figure]) -> None:
    assert [str(figure) for figure in figures if not figure.is_kept] == []
