"""A line of metrics is of the form that CloudWatch reads from logs."""

from datetime import UTC, datetime

import msgspec

from conveyor.adapters.aws.embedded_metrics import CloudWatchMetrics

NOW = datetime(2026, 11, 18, 12, 0, 0, 500_000, UTC)


def test_values_are_members_that_a_directive_names_with_units() -> None:
    lines = list[str]()
    CloudWatchMetrics("conveyor-prod", lambda: NOW, lines.append).publish(
        {"Workers": (2, "Count"), "BacklogPerWorker": (12.5, "Count")}
    )

    [line] = lines
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert msgspec.json.decode(line) == {
        "_aws": {
            "Timestamp": int(NOW.timestamp()) * 1000 + 500,
            "CloudWatchMetrics": [
                {
                    "Namespace": "conveyor-prod",
                    "Dimensions": [["Service"]],
                    "Metrics": [
                        {"Name": "Workers", "Unit": "Count"},
                        {"Name": "BacklogPerWorker", "Unit": "Count"},
                    ],
                }
            ],
        },
        "Service": "conveyor",
        "Workers": 2,
        "BacklogPerWorker": 12.5,
    }
