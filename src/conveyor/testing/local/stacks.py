"""Which engines a deployment has, and the settings that lead its processes to them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conveyor.testing.local.ports import free_port
from conveyor.testing.local.servers import (
    CREDENTIALS,
    HOST,
    REGION,
    ministack,
    postgres,
    seaweedfs,
    valkey,
)
from conveyor.testing.local.supervisor import Program

NAME = "conveyor-dev"  # of the table, of the bucket, and before the names of queues
EMULATORS = Path(sys.prefix).with_name(".venv-emulators") / "bin"


@dataclass(frozen=True)
class Stack:
    creation: Sequence[Program]  # that run once, before the others
    programs: Sequence[Program]  # in the order in which they are started
    settings: Mapping[str, str]


def aws(folder: Path) -> Stack:
    port, s3_port, valkey_port = free_port(), free_port(), free_port()
    at = f"?endpoint=http://{HOST}:{port}&region={REGION}"
    return Stack(
        [],
        [
            valkey(valkey_port, folder),
            seaweedfs(s3_port, folder),
            ministack(port, folder, EMULATORS),
        ],
        {
            **CREDENTIALS,
            "CONVEYOR_ENGINES": "aws",
            "CONVEYOR_METADATA": f"dynamodb://{NAME}{at}",
            "CONVEYOR_TASKS": f"dynamodb://{NAME}{at}",
            "CONVEYOR_QUEUES": f"sqs://{NAME}{at}",
            "CONVEYOR_CONTROL_QUEUE": f"sqs://{NAME}{at}",
            **_shared(s3_port, valkey_port),
        },
    )


def postgresql(folder: Path) -> Stack:
    port, s3_port, valkey_port = free_port(), free_port(), free_port()
    creation, server = postgres(port, folder)
    return Stack(
        creation,
        [valkey(valkey_port, folder), seaweedfs(s3_port, folder), server],
        {
            **CREDENTIALS,
            "CONVEYOR_ENGINES": "postgres",
            "CONVEYOR_METADATA": f"postgresql://conveyor@{HOST}:{port}/postgres?sslmode=disable",
            **_shared(s3_port, valkey_port),
        },
    )


def _shared(s3_port: int, valkey_port: int) -> dict[str, str]:
    storage = f"s3://{NAME}/pages?endpoint=http://{HOST}:{s3_port}&region={REGION}"
    return {
        "CONVEYOR_BODIES": storage,
        "CONVEYOR_BLOBS": storage,
        "CONVEYOR_COORDINATION": f"redis://{HOST}:{valkey_port}/0",
    }


STACKS: Mapping[str, Callable[[Path], Stack]] = {"aws": aws, "postgres": postgresql}
