"""All scenarios there are, by name."""

from tests.crash import (
    key_scenarios,
    list_scenarios,
    scenarios,
    schedule_scenarios,
    step_functions_scenarios,
    webhook_scenarios,
)

SCENARIOS = scenarios.SCENARIOS  # the modules put theirs in as they are loaded

__all__ = [
    "SCENARIOS",
    "key_scenarios",
    "list_scenarios",
    "schedule_scenarios",
    "step_functions_scenarios",
    "webhook_scenarios",
]
