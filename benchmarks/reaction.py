"""How soon do two workers on DynamoDB and SQS stop after a pause, and start the first task of a run?

Real processes on loopback: ministack, Valkey, SeaweedFS, an api, two workers, each with a gateway. The
goals are 1 s and 3 s by notification, and 10 s for a pause whose notification is lost.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.emulators import a_ministack
from tests.harness.aws_cluster import first_task_takes, pause_takes, reacting_cluster
from tests.harness.programs import mock_gateway
from tests.harness.valkey import a_valkey
from tests.s3_server import seaweedfs_at


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds until workers react")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = range(parser.parse_args().rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        a_ministack() as aws,
        a_valkey() as valkey,
        seaweedfs_at(Path(folder)) as s3,
        mock_gateway() as gateway,
    ):
        for notified in (True, False):
            place = Path(folder) / str(notified)
            place.mkdir()
            with reacting_cluster(
                place, url=aws.url, gateway=gateway, valkey=valkey, s3=s3, notified=notified
            ) as (api, gateways):
                how = "by notification" if notified else "without notification"
                _show(f"first task, {how}", [first_task_takes(api, gateways) for _ in rounds])
                _show(f"pause, {how}", [pause_takes(api, gateways) for _ in rounds])


def _show(what: str, seconds: Sequence[float]) -> None:
    print(f"{what:36} median {statistics.median(seconds):5.2f} s, longest {max(seconds):5.2f} s")


if __name__ == "__main__":
    main()
