"""Metrics for CloudWatch in its embedded metric format: lines of JSON that it reads from the log.

They go to standard output, whatever level and form the log on standard error has. No call is made, so
no permission is needed and nothing waits.
"""

import sys
from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

# Metrics with this dimension are of the whole service: a process has no dimension of its own, because
# a policy of scaling follows one metric.
DIMENSION = {"Service": "conveyor"}


def embedded_metrics(
    namespace: str, values: Mapping[str, tuple[float, str]], now: datetime
) -> bytes:
    """A line with values, each with its unit, by the name of its metric."""
    metrics = [{"Name": name, "Unit": unit} for name, (_, unit) in values.items()]
    directive = {
        "Namespace": namespace,
        "Dimensions": [list(DIMENSION)],
        "Metrics": metrics,
    }
    return msgspec.json.encode(
        {
            "_aws": {
                "Timestamp": int(now.timestamp() * 1000),
                "CloudWatchMetrics": [directive],
            },
            **DIMENSION,
            **{name: value for name, (value, _) in values.items()},
        }
    )


class CloudWatchMetrics:
    def __init__(
        self,
        namespace: str,
        now: Callable[[], datetime],
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._namespace, self._now, self._write = namespace, now, write or _write

    def publish(self, values: Mapping[str, tuple[float, str]]) -> None:
        line = embedded_metrics(self._namespace, values, self._now())
        self._write(f"{line.decode()}\n")


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
