"""`make bench`: every benchmark, one after another."""

from benchmarks import (
    aws_client,
    aws_cost,
    aws_model,
    bodies,
    busy,
    dashboard,
    drain,
    export,
    hot_polls,
    http_rates,
    large_submit,
    listeners,
    lists,
    million,
    postgres,
    postgres_drain,
    receives,
    s3,
    scaling,
    valkey,
)

for benchmark in (
    drain,
    busy,
    scaling,
    bodies,
    http_rates,
    hot_polls,
    large_submit,
    listeners,
    dashboard,
    lists,
    million,
    export,
    s3,
    receives,
    valkey,
    postgres,
    postgres_drain,
    aws_client,
    aws_cost,
    aws_model,
):
    print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}")
    benchmark.main()
