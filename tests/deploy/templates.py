"""Reading the templates, and creating stacks from them on an emulator."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml
from botocore.exceptions import ClientError, WaiterError

from tests.emulators import PROGRAMS, REGION, Emulator, missing

FOLDER = Path(__file__).parents[2] / "deploy" / "aws"
DATA, SERVICES = FOLDER / "data.yaml", FOLDER / "services.yaml"
POLLS = {"Delay": 1, "MaxAttempts": 60}


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # the library has no types
    """Also reads short forms, such as `!Ref Table`, as the objects that they stand for."""


def _short_form(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    if name == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {name if name in {"Ref", "Condition"} else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _short_form)


@cache
def template(path: Path) -> Mapping[str, Any]:
    read: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    return read


def resources(path: Path, kind: str) -> dict[str, dict[str, Any]]:
    """Resources of a type, by their names in the template."""
    found: Mapping[str, dict[str, Any]] = template(path)["Resources"]
    return {name: one for name, one in found.items() if one["Type"] == kind}


def lint(*paths: Path) -> str:
    """What cfn-lint finds."""
    program = PROGRAMS / "cfn-lint"
    if not program.exists():
        missing("there is no cfn-lint: `make setup` brings it with the emulators of AWS")
    regions = ["--regions", REGION, "us-east-1"]
    done = subprocess.run(
        [program, *regions, "--", *paths], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@contextmanager
def stack(
    emulator: Emulator, name: str, body: Mapping[str, Any], **parameters: str
) -> Iterator[dict[str, str]]:
    """A stack that exists meanwhile, by its outputs. It must be deleted without an error."""
    cloudformation = emulator.client("cloudformation")
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=msgspec.json.encode(body).decode(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[
            {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
        ],
    )
    try:
        _wait(cloudformation, "stack_create_complete", name)
        [described] = cloudformation.describe_stacks(StackName=name)["Stacks"]
        yield {one["OutputKey"]: one["OutputValue"] for one in described.get("Outputs", ())}
    finally:
        cloudformation.delete_stack(StackName=name)
        _wait(cloudformation, "stack_delete_complete", name)


def _wait(cloudformation: Any, state: str, name: str) -> None:
    try:
        cloudformation.get_waiter(state).wait(StackName=name, WaiterConfig=POLLS)
    except WaiterError as error:
        raise AssertionError(_failures(cloudformation, name)) from error


def _failures(cloudformation: Any, name: str) -> list[str]:
    try:
        events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
    except ClientError as error:
        return [str(error)]
    return [
        f"{event['LogicalResourceId']}: {event.get('ResourceStatusReason')}"
        for event in events
        if "FAILED" in event["ResourceStatus"]
    ]
