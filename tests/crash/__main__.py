"""Crash points from the command line, and for the tests: a process without threads, to fork from.

`python -m tests.crash` prints how many points each scenario has; with names of scenarios it dies
at each of theirs, on every engine. `serve` answers one question a line, for the tests.
"""

import sys
from collections.abc import Sequence
from itertools import product

import msgspec

from tests.crash.deaths import Crossing, When
from tests.crash.every_scenario import SCENARIOS
from tests.crash.harness import check_deaths, check_pairs, points, prepare, record, sample
from tests.crash.questions import EMBEDDED, SHARED, Question, Report
from tests.crash.shared import EMBEDDED_ONLY


def serve() -> None:
    for line in sys.stdin:
        question = msgspec.json.decode(line, type=Question)
        try:
            report = answer(question)
        except Exception as error:  # noqa: BLE001 - the test that asked is to fail with it
            report = Report(failures=[repr(error)])
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        sys.stdout.flush()


def answer(question: Question) -> Report:
    name = question.scenario
    match question.ask:
        case "record":
            return Report(crossed=record(name, question.engine).crossed)
        case "deaths":
            calls, deaths, failures = check_deaths(name, seed=question.seed, engine=question.engine)
            return Report(calls=calls, deaths=deaths, failures=[str(one) for one in failures])
        case _:
            pairs, failures = check_pairs(name, question.at, seed=question.seed)
            return Report(deaths=pairs, failures=[str(one) for one in failures])


def table() -> None:
    rows: list[tuple[str, ...]] = [("scenario", "calls", "points", "deaths", "in make test")]
    figures = {name: _figures(record(name).crossed) for name in SCENARIOS}
    rows += [(name, *map(str, some)) for name, some in figures.items()]
    rows.append(("all", *(str(sum(column)) for column in zip(*figures.values(), strict=True))))
    for name, *some in rows:
        print(f"{name:44}", *(f"{one:>12}" for one in some))


def _figures(crossed: Sequence[Crossing]) -> tuple[int, int, int, int]:
    deaths = points(crossed, thorough=True)
    return len(crossed), len(When) * len(crossed), len(deaths), len(sample(deaths, ""))


def run(names: list[str]) -> int:
    wrong = 0
    for name, engine in product(names, (EMBEDDED, *SHARED)):
        if engine != EMBEDDED and name in EMBEDDED_ONLY:
            continue
        calls, deaths, failures = check_deaths(name, seed="", engine=engine)
        wrong += len(failures)
        told = f"{calls} calls, {deaths} deaths, {len(failures)} with another outcome"
        print(f"{name} ({engine}): {told}")
        for failure in failures:
            print(f"  {failure}")
    return 1 if wrong else 0


if __name__ == "__main__":
    prepare()
    if sys.argv[1:] == ["serve"]:
        serve()
    elif sys.argv[1:]:
        sys.exit(run(sys.argv[1:]))
    else:
        table()
