"""CreateTable, DescribeTable, DeleteTable and the time to live."""

import re
from collections.abc import Mapping
from typing import Any

from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.refusals import Refusal, invalid, invalid_parameter, not_found
from conveyor.testing.dynamodb.schema import TableSchema
from conveyor.testing.dynamodb.storage import StoredTable

NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
MOST_INDEXES = 20
TTL_CHANGE = 3_600  # seconds until the attribute may be changed again
ARN = "arn:aws:dynamodb:eu-west-1:000000000000:table/"

Request = Mapping[str, Any]


def create_table(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    name = request.get("TableName")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid("TableName must be 3 to 255 characters of a-z, A-Z, 0-9, _, - and .")
    try:
        schema = TableSchema.parse(request)
    except (KeyError, ValueError) as error:
        raise invalid_parameter(f"the schema lacks or misuses {error}") from None
    _check_schema(schema, request)
    if name in engine.tables:
        raise Refusal("ResourceInUseException", f"Table already exists: {name}")
    described = _described(request, engine.now())
    engine.tables[name] = StoredTable(schema, described)
    engine.tables[name].ready_at = engine.now() + engine.knobs.creation_time.total_seconds()
    return {"TableDescription": {**described, "TableStatus": "CREATING"}}


def _check_schema(schema: TableSchema, request: Request) -> None:
    used = {*schema.keys, *(name for index in schema.indexes.values() for name in index.keys)}
    if used - schema.types.keys():
        raise invalid_parameter(
            "Some index key attributes are not defined in AttributeDefinitions. "
            f"Keys: {sorted(used - schema.types.keys())}"
        )
    if schema.types.keys() - used:
        raise invalid_parameter(
            "Number of attributes in KeySchema does not exactly match number of attributes "
            f"defined in AttributeDefinitions: {sorted(schema.types.keys() - used)} is not a key"
        )
    if not set(schema.types.values()) <= {"S", "N", "B"}:
        raise invalid("Member must satisfy enum value set: [B, N, S]")
    if len(schema.indexes) > MOST_INDEXES:
        raise invalid_parameter("GlobalSecondaryIndex count exceeds the per-table limit of 20")
    if len(schema.indexes) < len(request.get("GlobalSecondaryIndexes") or ()):
        raise invalid_parameter("Duplicate index name")
    mode = request.get("BillingMode", "PROVISIONED")
    if mode == "PROVISIONED" and "ProvisionedThroughput" not in request:
        raise invalid_parameter(
            "ProvisionedThroughput must be specified when BillingMode is PROVISIONED"
        )
    if mode == "PAY_PER_REQUEST" and "ProvisionedThroughput" in request:
        raise invalid_parameter(
            "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is PAY_PER_REQUEST"
        )


def _described(request: Request, now: float) -> dict[str, Any]:
    name = request["TableName"]
    indexes = [
        {
            "IndexName": one["IndexName"],
            "KeySchema": one["KeySchema"],
            "Projection": one["Projection"],
            "IndexStatus": "ACTIVE",
            "IndexArn": f"{ARN}{name}/index/{one['IndexName']}",
        }
        for one in request.get("GlobalSecondaryIndexes") or ()
    ]
    return {
        "TableName": name,
        "TableStatus": "ACTIVE",
        "TableArn": f"{ARN}{name}",
        "KeySchema": request["KeySchema"],
        "AttributeDefinitions": request["AttributeDefinitions"],
        "CreationDateTime": now,
        "BillingModeSummary": {"BillingMode": request.get("BillingMode", "PROVISIONED")},
        **({"GlobalSecondaryIndexes": indexes} if indexes else {}),
    }


def describe_table(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    table = engine.tables.get(request.get("TableName", ""))
    if table is None:
        raise not_found()
    status = "CREATING" if table.ready_at > engine.now() else "ACTIVE"
    count = sum(1 for _ in table.items())
    return {"Table": {**table.described, "TableStatus": status, "ItemCount": count}}


def delete_table(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    table = engine.table(request.get("TableName"))
    del engine.tables[table.schema.name]
    return {"TableDescription": {**table.described, "TableStatus": "DELETING"}}


def list_tables(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    del request
    return {"TableNames": sorted(engine.tables)}


def update_time_to_live(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    table = engine.table(request.get("TableName"))
    wanted = request["TimeToLiveSpecification"]
    if wanted["Enabled"] == (table.ttl_attribute is not None):
        state = "enabled" if wanted["Enabled"] else "disabled"
        raise invalid(f"TimeToLive is already {state}")
    if engine.now() < table.ttl_changed_at + TTL_CHANGE:
        raise invalid("Time to live has been modified multiple times within a fixed interval")
    table.ttl_changed_at = engine.now()
    table.enable_ttl(wanted["AttributeName"] if wanted["Enabled"] else None)
    return {"TimeToLiveSpecification": wanted}


def describe_time_to_live(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    attribute = engine.table(request.get("TableName")).ttl_attribute
    if attribute is None:
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
    told = {"TimeToLiveStatus": "ENABLED", "AttributeName": attribute}
    return {"TimeToLiveDescription": told}
