"""The roles of deploy/aws/data.yaml allow what the code calls, and nothing else."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from botocore import xform_name

import conveyor
from conveyor.adapters.aws.kms import CONTEXT
from tests.deploy.templates import DATA, resources

ADAPTERS = Path(conveyor.__file__).parent / "adapters"
DYNAMODB, SQS = ADAPTERS / "aws" / "dynamodb", ADAPTERS / "aws" / "sqs"

# What `conveyor migrate` alone does, with the credentials of an operator.
MIGRATION = {"dynamodb:CreateTable", "dynamodb:DescribeTimeToLive", "dynamodb:UpdateTimeToLive"}
# Operations that are allowed by actions of other names.
STATEMENTS = {"INSERT": "PartiQLInsert", "UPDATE": "PartiQLUpdate"}
OBSTORE = {
    "put_async": {"PutObject", "AbortMultipartUpload"},  # also in parts
    "get_async": {"GetObject"},
    "head_async": {"GetObject"},
    "list": {"ListBucket"},
    "delete_async": {"DeleteObject"},
}
# What only the loops of a worker do: they claim tasks, receive messages and look for old queues.
WORKER_ONLY = {
    "dynamodb:PartiQLUpdate",
    "sqs:ChangeMessageVisibility",
    "sqs:ListQueues",
    "states:SendTaskFailure",
    "states:SendTaskHeartbeat",
    "states:SendTaskSuccess",
}


def test_a_worker_may_do_what_the_adapters_call_and_nothing_else() -> None:
    assert granted("WorkerRole") == _called() - MIGRATION


def test_an_api_process_may_do_the_same_except_the_work_of_loops() -> None:
    assert granted("ApiRole") == _called() - MIGRATION - WORKER_ONLY


def test_no_action_is_a_pattern_and_only_some_have_every_resource() -> None:
    everywhere = set()
    for role in ("ApiRole", "WorkerRole", "ExecutionRole"):
        for statement in _statements(role):
            actions = _listed(statement["Action"])
            assert statement["Effect"] == "Allow"
            assert not any("*" in action for action in actions)
            if statement["Resource"] == "*":
                everywhere |= set(actions)
    # AWS takes no resource for any of them.
    assert everywhere == {
        "ecr:GetAuthorizationToken",
        "sqs:ListQueues",
        *(action for action in WORKER_ONLY if action.startswith("states:")),
    }


def test_an_api_process_receives_messages_of_the_dead_queue_only() -> None:
    [statement] = [one for one in _statements("ApiRole") if "sqs:ReceiveMessage" in one["Action"]]
    assert statement["Resource"] == {"Fn::GetAtt": ["DeadQueue", "Arn"]}


def test_the_key_is_used_for_the_context_of_the_code_only() -> None:
    [statement] = [one for one in _statements("WorkerRole") if "kms:Decrypt" in one["Action"]]
    wanted = {f"kms:EncryptionContext:{name}": value for name, value in CONTEXT.items()}
    assert statement["Condition"] == {"StringEquals": wanted}


def test_the_execution_role_pulls_images_writes_logs_and_reads_one_secret() -> None:
    assert granted("ExecutionRole") == {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:GetAuthorizationToken",
        "ecr:GetDownloadUrlForLayer",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "secretsmanager:GetSecretValue",
    }


# What the template grants.


def granted(role: str) -> set[str]:
    return {action for statement in _statements(role) for action in _listed(statement["Action"])}


def _statements(role: str) -> Iterator[dict[str, Any]]:
    properties = resources(DATA, "AWS::IAM::Role")[role]["Properties"]
    managed = resources(DATA, "AWS::IAM::ManagedPolicy")
    attached = [
        managed[one["Ref"]]["Properties"] for one in properties.get("ManagedPolicyArns", ())
    ]
    others = [one["Properties"] for one in resources(DATA, "AWS::IAM::Policy").values()]
    attached += [one for one in others if {"Ref": role} in one["Roles"]]
    for policy in [*properties["Policies"], *attached]:
        yield from policy["PolicyDocument"]["Statement"]


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


# What the code calls.


@cache
def _called() -> set[str]:
    return {
        *(f"dynamodb:{name}" for name in _dynamodb()),
        *(f"sqs:{name.removesuffix('Batch')}" for name in _operations("sqs", SQS)),
        *(f"s3:{name}" for name in _s3()),
        *(f"kms:{name}" for name in _methods("kms", ADAPTERS / "aws" / "kms.py")),
        *(
            f"states:{name}"
            for name in _methods("stepfunctions", ADAPTERS / "aws" / "step_functions.py")
        ),
    }


def _dynamodb() -> Iterator[str]:
    for name in _operations("dynamodb", DYNAMODB, SQS):
        if name == "BatchExecuteStatement":
            yield from _statement_actions()
        elif name == "TransactWriteItems":
            yield from _transacted()
        else:
            yield name


def _operations(service: str, *folders: Path) -> set[str]:
    """Operations that are named in the modules of folders."""
    names = set(_operation_names(service))
    return {text for folder in folders for text in _texts(folder) if text in names}


def _statement_actions() -> set[str]:
    words = {text.split()[0] for text in _texts(DYNAMODB) if re.match(r"\s*[A-Z]{6} \S", text)}
    return {STATEMENTS[word] for word in words}


def _transacted() -> set[str]:
    names = {"Put", "Update", "Delete", "ConditionCheck"}
    return {f"{text}Item" for folder in (DYNAMODB, SQS) for text in _texts(folder) if text in names}


def _s3() -> set[str]:
    bucket = ast.parse((ADAPTERS / "s3" / "bucket.py").read_text(encoding="utf-8"))
    called = {
        node.attr
        for node in ast.walk(bucket)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in {"_store", "_upload_store"}
    }
    return {action for name in called for action in OBSTORE[name]}


def _methods(service: str, module: Path) -> set[str]:
    """Operations whose methods of botocore a module uses."""
    methods = {xform_name(name): name for name in _operation_names(service)}
    tree = ast.parse(module.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {methods[name] for name in used & methods.keys()}


def _operation_names(service: str) -> list[str]:
    names: list[str] = botocore.session.Session().get_service_model(service).operation_names
    return names


def _texts(folder: Path) -> Iterator[str]:
    """String constants of the modules of a folder; of f-strings, their parts."""
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
