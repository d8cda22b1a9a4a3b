"""State machines that wait for a task token, on any emulator."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from tests.emulators import Emulator

T = TypeVar("T")
ROLE = "arn:aws:iam::123456789012:role/any"
CAUGHT = ("RunStopped", "RunDeleted", "InsufficientCredits", "States.Timeout")


@dataclass(frozen=True, slots=True)
class Waiting:
    """An execution that has handed out its token."""

    machine: "Machine"
    execution: str
    token: str

    @property
    def is_waiting(self) -> bool:
        return bool(self._described()["status"] == "RUNNING")

    def outcome(self, *, within: float = 30.0) -> dict[str, Any]:
        """What its last state made of what the token was told."""
        described = until(lambda: None if self.is_waiting else self._described(), within=within)
        assert described["status"] == "SUCCEEDED", described
        outcome: dict[str, Any] = msgspec.json.decode(described["output"])
        return outcome

    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = self.machine.states.describe_execution(
            executionArn=self.execution
        )
        return described


@dataclass(frozen=True, slots=True)
class Machine:
    states: Any
    queues: Any
    queue: str
    arn: str

    def start(self) -> Waiting:
        """Start an execution, and wait until it waits."""
        name = uuid.uuid4().hex
        execution = self.states.start_execution(stateMachineArn=self.arn, name=name, input="{}")
        message = until(self._received)
        self.queues.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        token = msgspec.json.decode(message["Body"])["token"]
        return Waiting(self, execution["executionArn"], token)

    def _received(self) -> dict[str, Any] | None:
        got = self.queues.receive_message(QueueUrl=self.queue, WaitTimeSeconds=1)
        return next(iter(got.get("Messages", ())), None)


def a_machine(aws: Emulator, **task: object) -> Machine:
    """A machine whose first state waits for its token, and whose others tell what it was told."""
    states, queues = aws.client("stepfunctions"), aws.client("sqs")
    name = f"m{uuid.uuid4().hex}"
    queue = queues.create_queue(QueueName=name)["QueueUrl"]
    definition = msgspec.json.encode(_definition(queue, task)).decode()
    made = states.create_state_machine(name=name, definition=definition, roleArn=ROLE)
    return Machine(states, queues, queue, made["stateMachineArn"])


def _definition(queue: str, task: dict[str, object]) -> dict[str, object]:
    catchers = [
        {"ErrorEquals": [error], "ResultPath": "$.caught", "Next": error} for error in CAUGHT
    ]
    waits = {
        "Type": "Task",
        "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
        "Parameters": {"QueueUrl": queue, "MessageBody": {"token.$": "$$.Task.Token"}},
        "ResultPath": "$.said",
        "Catch": catchers,
        "Next": "Told",
        **task,
    }
    caught = {
        error: {"Type": "Pass", "Parameters": {"by_name": error, "it.$": "$.caught"}, "End": True}
        for error in CAUGHT
    }
    told = {"Type": "Pass", "Parameters": {"next_state_saw.$": "$.said"}, "End": True}
    return {"StartAt": "Waits", "States": {"Waits": waits, "Told": told, **caught}}


def until(ask: Callable[[], T | None], *, within: float = 30.0) -> T:
    """The first answer that is not None."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if (answer := ask()) is not None:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"did not happen within {within:.0f} s")
