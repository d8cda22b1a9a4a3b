"""deploy/aws/data.yaml: it makes what `conveyor migrate` would make, and deleting it keeps data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from conveyor.adapters.aws.dynamodb.layout import TTL, table_definition
from conveyor.adapters.aws.sqs.queues import RETENTION
from conveyor.adapters.s3 import setup
from conveyor.app.migrate import migrate
from conveyor.ports.queues import MOST_RECEIVES
from conveyor.settings import Settings
from tests.deploy.templates import DATA, lint, resources, stack, template
from tests.emulators import Emulator

TABLE, QUEUE, BUCKET = "AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::S3::Bucket"
KEPT = {"Table", "ControlTable", "Bucket", "Key"}


def test_the_template_has_no_findings_of_the_linter() -> None:
    assert lint(DATA) == ""


def test_the_table_is_the_one_that_the_engine_needs() -> None:
    table = dict(resources(DATA, TABLE)["Table"]["Properties"])

    assert table.pop("TimeToLiveSpecification") == {"AttributeName": TTL, "Enabled": True}
    assert table.pop("PointInTimeRecoverySpecification") == {"PointInTimeRecoveryEnabled": True}
    assert table.pop("DeletionProtectionEnabled") is True
    assert table == table_definition(table["TableName"])


def test_no_message_is_given_up_earlier_than_by_the_queues_of_migrate() -> None:
    queues = resources(DATA, QUEUE)
    assert len(queues) == 5
    for name, queue in queues.items():
        properties = queue["Properties"]
        assert properties["MessageRetentionPeriod"] == RETENTION.total_seconds()
        if name != "DeadQueue":
            assert properties["RedrivePolicy"] == {
                "deadLetterTargetArn": {"Fn::GetAtt": ["DeadQueue", "Arn"]},
                "maxReceiveCount": MOST_RECEIVES,
            }


def test_the_bucket_has_the_lifecycle_rules_of_migrate() -> None:
    bucket = resources(DATA, BUCKET)["Bucket"]["Properties"]
    rules = {
        rule["Id"]: (rule["Prefix"], rule.get("ExpirationInDays"))
        for rule in bucket["LifecycleConfiguration"]["Rules"]
        if rule["Status"] == "Enabled"
    }
    wanted = {"": None, **setup.ORPHANS}
    assert rules == {setup._rule_id(prefix): (prefix, days) for prefix, days in wanted.items()}


def test_data_outlive_their_stack() -> None:
    kept = {
        name: (resource["UpdateReplacePolicy"], resource["Type"])
        for name, resource in template(DATA)["Resources"].items()
        if resource.get("DeletionPolicy") == "Retain"
    }
    assert kept.keys() == KEPT
    assert {policy for policy, _ in kept.values()} == {"Retain"}


async def test_a_stack_leaves_migrate_nothing_to_create_and_its_deletion_keeps_data(
    ministack: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ministack.environ.items():
        monkeypatch.setenv(name, value)
    environment = f"t{uuid4().hex[:8]}"
    name, body = f"data-{environment}", template(DATA)
    with kept_data_removed(ministack, environment):
        with stack(ministack, name, body, Environment=environment, StepFunctions="yes") as outputs:
            done = [line async for _, line in migrate(_settings(outputs))]
        # The emulator ignores what templates say of expiry, which tests above compare.
        assert "enabled the removal of expired items" in done
        assert "set the lifecycle rules" in done
        assert [line for line in done if "created" in line] == []
        assert "has the CORS rules for *" in done
        assert f"the table {outputs['ControlTable']} exists" in done
        assert f"the queue {outputs['QueuePrefix']}-control-other exists" in done

        pages = ministack.client("dynamodb").get_paginator("list_tables").paginate()
        tables = [name for page in pages for name in page["TableNames"]]
        assert {outputs["Table"], outputs["ControlTable"]} <= set(tables)
        assert outputs["Bucket"] in _buckets(ministack)
        key = ministack.client("kms").describe_key(KeyId=outputs["Key"])["KeyMetadata"]
        assert key["KeyState"] == "Enabled"
        queues = ministack.client("sqs").list_queues(QueueNamePrefix=outputs["QueuePrefix"])
        assert not queues.get("QueueUrls")


def _settings(outputs: dict[str, str]) -> Settings:
    table, queues = f"dynamodb://{outputs['Table']}", f"sqs://{outputs['QueuePrefix']}"
    bucket = f"s3://{outputs['Bucket']}"
    return Settings(
        engines="aws",
        metadata=table,
        tasks=table,
        control_queue=queues,
        queues=queues,
        bodies=bucket,
        blobs=bucket,
        coordination="redis://127.0.0.1",
        encryption=f"kms:{outputs['Key']}",
    )


@contextmanager
def kept_data_removed(emulator: Emulator, environment: str) -> Iterator[None]:
    """Removes afterwards what the deleted stack has kept."""
    try:
        yield
    finally:
        dynamodb, s3 = emulator.client("dynamodb"), emulator.client("s3")
        name = f"conveyor-{environment}"
        for table in (name, f"{name}-control"):
            dynamodb.update_table(TableName=table, DeletionProtectionEnabled=False)
            dynamodb.delete_table(TableName=table)
        for bucket in _buckets(emulator):
            if bucket.startswith(f"{name}-"):
                s3.delete_bucket(Bucket=bucket)


def _buckets(emulator: Emulator) -> list[str]:
    listed: list[dict[str, Any]] = emulator.client("s3").list_buckets()["Buckets"]
    return [bucket["Name"] for bucket in listed]
