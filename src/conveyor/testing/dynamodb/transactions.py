"""TransactWriteItems and TransactGetItems."""

from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.adapters.aws.item_size import item_size
from conveyor.testing.dynamodb import capacity
from conveyor.testing.dynamodb.capacity import TABLE, Units
from conveyor.testing.dynamodb.engine import TOKEN_LIFE, DynamoDbEngine, PlannedWrite
from conveyor.testing.dynamodb.expressions import Placeholders
from conveyor.testing.dynamodb.item_operations import (
    Request,
    check_expressions,
    consumed_capacity,
    plan_check,
    plan_delete,
    plan_put,
    plan_update,
    projection,
)
from conveyor.testing.dynamodb.keys import parse_item, parse_key
from conveyor.testing.dynamodb.refusals import Refusal, invalid
from conveyor.testing.dynamodb.updates import projected

MOST_ACTIONS = 100
LARGEST = 4 * 1024 * 1024  # bytes
LONGEST_TOKEN = 36
ACTIONS = {"Put", "Update", "Delete", "ConditionCheck"}
# What cancels a transaction; anything else refuses the request as a whole.
CANCELLING = {
    "ConditionalCheckFailedException",
    "ThrottlingException",
    "TransactionConflictException",
}


def transact_write_items(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    actions = _actions(request, ACTIONS)
    _check_targets(engine, actions)
    token = request.get("ClientRequestToken")
    if token is not None and not 1 <= len(token) <= LONGEST_TOKEN:
        raise invalid("ClientRequestToken must have 1 to 36 characters")
    if token and (answer := _repeated(engine, request, token)) is not None:
        return answer
    plans = _plans(engine, actions)
    if sum(item_size(plan.after or plan.before or {}) for plan in plans) > LARGEST:
        raise invalid("Transaction request exceeds the 4MB transaction size limit")
    for plan in plans:
        engine.apply(plan, transactional=True)
    if token:
        engine.tokens[token] = request, engine.now() + TOKEN_LIFE.total_seconds()
    units: dict[str, Units] = {}
    for plan in plans:
        name = plan.table.schema.name
        units[name] = units.get(name, Units()) + plan.units
    return consumed_capacity(request, units, is_list=True)


def _actions(request: Request, kinds: set[str]) -> Sequence[tuple[str, Request]]:
    given: Sequence[Mapping[str, Any]] = request.get("TransactItems") or ()
    if not 1 <= len(given) <= MOST_ACTIONS:
        raise invalid(
            f"1 validation error detected: Value at 'transactItems' failed to satisfy constraint: "
            f"Member must have length between 1 and {MOST_ACTIONS}, got {len(given)}"
        )
    if any(len(action) != 1 or not action.keys() <= kinds for action in given):
        raise invalid("TransactItems can only contain one of Check, Put, Update or Delete")
    return [(kind, action) for one in given for kind, action in one.items()]


def _check_targets(engine: DynamoDbEngine, actions: Sequence[tuple[str, Request]]) -> None:
    targets = set()
    for kind, action in actions:
        table = engine.table(action.get("TableName"))
        check_expressions(action)
        if kind == "Put":
            key = table.key(parse_item(table.schema, action.get("Item")))
        else:
            key = table.key(parse_key(table.schema, action.get("Key")))
        target = table.schema.name, key
        if target in targets:
            raise invalid("Transaction request cannot include multiple operations on one item")
        targets.add(target)


def _repeated(engine: DynamoDbEngine, request: Request, token: str) -> dict[str, Any] | None:
    """The answer to a transaction that was carried out before; it costs as reading its items."""
    first, ends = engine.tokens.get(token, ({}, 0.0))
    if ends <= engine.now():
        return None
    if first != request:
        raise Refusal(
            "IdempotentParameterMismatchException",
            "Request token already in use for another request with different parameters",
        )
    units: dict[str, Units] = {}
    for kind, action in _actions(request, ACTIONS):
        table = engine.table(action["TableName"])
        key = action["Item"] if kind == "Put" else action["Key"]
        key = table.schema.key_of(key)
        cost = capacity.transactional_get(table.get(key))
        engine.charge_read(table, key, cost)
        name = table.schema.name
        units[name] = units.get(name, Units()) + cost
    return consumed_capacity(request, units, is_list=True)


def _plans(engine: DynamoDbEngine, actions: Sequence[tuple[str, Request]]) -> list[PlannedWrite]:
    plans: list[PlannedWrite] = []
    reasons: list[dict[str, Any]] = []
    cost = Units()
    for kind, action in actions:
        try:
            plan = _plan(engine, kind, action)
        except Refusal as refusal:
            reasons.append(_reason(refusal))
            cost += refusal.units
        else:
            plans.append(plan)
            reasons.append({"Code": "None"})
            cost += Units(write={TABLE: plan.units.write[TABLE]})
    if len(plans) < len(actions):
        raise _canceled(reasons, cost)
    return plans


def _plan(engine: DynamoDbEngine, kind: str, action: Request) -> PlannedWrite:
    match kind:
        case "Put":
            return plan_put(engine, action, transactional=True)
        case "Delete":
            return plan_delete(engine, action, transactional=True)
        case "Update":
            return plan_update(engine, action, transactional=True)[0]
        case _:
            return plan_check(engine, action)


def _reason(refusal: Refusal) -> dict[str, Any]:
    if refusal.code not in CANCELLING and not refusal.is_about_content:
        raise refusal
    return {"Code": refusal.short_code, "Message": refusal.message, **refusal.fields}


def _canceled(reasons: Sequence[Mapping[str, Any]], cost: Units) -> Refusal:
    codes = ", ".join(reason["Code"] for reason in reasons)
    return Refusal(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        fields={"CancellationReasons": list(reasons)},
        units=cost,
    )


def transact_get_items(engine: DynamoDbEngine, request: Request) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    units: dict[str, Units] = {}
    for _, get in _actions(request, {"Get"}):
        table = engine.table(get.get("TableName"))
        placeholders = Placeholders.of(get)
        paths = projection(get, placeholders)
        placeholders.check_used()
        key = parse_key(table.schema, get.get("Key"))
        engine.admit_read(table, key)
        item = table.get(key)
        cost = capacity.transactional_get(item)
        engine.charge_read(table, key, cost)
        found.append({} if item is None else {"Item": projected(item, paths)})
        name = table.schema.name
        units[name] = units.get(name, Units()) + cost
    return {"Responses": found} | consumed_capacity(request, units, is_list=True)
