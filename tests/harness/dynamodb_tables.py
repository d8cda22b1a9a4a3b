"""A table with indexes, as tests of DynamoDB use it."""

from typing import Any

TABLE = "conveyor"


def table_request(name: str = TABLE) -> dict[str, Any]:
    """A CreateTable request: keys pk and sk, an index of all attributes and one of keys alone."""

    def keys(partition: str, sort: str) -> list[dict[str, str]]:
        return [
            {"AttributeName": partition, "KeyType": "HASH"},
            {"AttributeName": sort, "KeyType": "RANGE"},
        ]

    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": keys("pk", "sk"),
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": kind}
            for attribute, kind in {"pk": "S", "sk": "S", "g": "S", "n": "N"}.items()
        ],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": "by-g",
                "KeySchema": keys("g", "n"),
                "Projection": {"ProjectionType": "ALL"},
            },
            {
                "IndexName": "by-g-keys",
                "KeySchema": keys("g", "sk"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            },
        ],
    }


def key(pk: str, sk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}}
