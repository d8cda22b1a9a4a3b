"""What a run of the tests tells at its end: how many crash points it died at."""

from collections import Counter

import pytest

pytest_plugins = ["tests.emulators"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            told.update({name: n for name, n in report.user_properties if isinstance(n, int)})
    if told:
        terminalreporter.write_line(", ".join(f"{name}: {n:,}" for name, n in told.items()))
