"""Every operation that the fake knows."""

from collections.abc import Callable, Mapping
from typing import Any

from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.item_operations import (
    batch_get_item,
    batch_write_item,
    delete_item,
    get_item,
    put_item,
    update_item,
)
from conveyor.testing.dynamodb.queries import query
from conveyor.testing.dynamodb.statements import batch_execute_statement, execute_statement
from conveyor.testing.dynamodb.table_operations import (
    create_table,
    delete_table,
    describe_table,
    describe_time_to_live,
    list_tables,
    update_time_to_live,
)
from conveyor.testing.dynamodb.transactions import transact_get_items, transact_write_items

OPERATIONS: Mapping[str, Callable[[DynamoDbEngine, Mapping[str, Any]], dict[str, Any]]] = {
    "BatchExecuteStatement": batch_execute_statement,
    "BatchGetItem": batch_get_item,
    "BatchWriteItem": batch_write_item,
    "CreateTable": create_table,
    "DeleteItem": delete_item,
    "DeleteTable": delete_table,
    "DescribeTable": describe_table,
    "DescribeTimeToLive": describe_time_to_live,
    "ExecuteStatement": execute_statement,
    "GetItem": get_item,
    "ListTables": list_tables,
    "PutItem": put_item,
    "Query": query,
    "TransactGetItems": transact_get_items,
    "TransactWriteItems": transact_write_items,
    "UpdateItem": update_item,
    "UpdateTimeToLive": update_time_to_live,
}
