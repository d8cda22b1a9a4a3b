"""`make bench`: every benchmark, one after another."""

from benchmarks import bodies, drain, export, http_rates, large_submit, listeners, lists, million

for benchmark in (
    bodies,
    drain,
    http_rates,
    large_submit,
    listeners,
    lists,
    million,
    export,
):
    print(f"\n{(benchmark.__doc__ or '').splitlines()[0]}")
    benchmark.main()
