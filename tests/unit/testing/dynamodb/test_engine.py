"""The fake's rules, by direct calls."""

from datetime import timedelta
from typing import Any

import pytest

from conveyor.adapters.aws.attribute_values import encode_item
from conveyor.testing.clock import FakeClock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.refusals import Refusal
from tests.harness.dynamodb_tables import TABLE, key, table_request
from tests.unit.testing.dynamodb.conftest import Refused

INVALID = "ValidationException"


def put(engine: DynamoDbEngine, pk: str, sk: str, **fields: object) -> None:
    item = key(pk, sk) | encode_item(fields)
    engine.execute("PutItem", {"TableName": TABLE, "Item": item})


def get(engine: DynamoDbEngine, pk: str, sk: str) -> dict[str, Any] | None:
    found = engine.execute("GetItem", {"TableName": TABLE, "Key": key(pk, sk)})
    return found.get("Item")


def query(engine: DynamoDbEngine, condition: str, **more: Any) -> dict[str, Any]:
    values = more.pop("values", {})
    request = {
        "TableName": TABLE,
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": {f":{name}": value for name, value in values.items()},
        **more,
    }
    return engine.execute("Query", request)


def sort_keys(answer: dict[str, Any]) -> list[str]:
    return [item["sk"]["S"] for item in answer["Items"]]


# Values and keys.


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"S": "a", "N": "1"},
        {"X": "a"},
        {"N": "abc"},
        {"N": ""},
        {"N": "1" * 39},
        {"N": "1E126"},
        {"N": "1E-131"},
        {"SS": []},
        {"SS": ["a", "a"]},
        {"NS": ["1", "1.0"]},
        {"NULL": False},
        {"B": "no base64"},
    ],
)
def test_values_that_aws_refuses_are_refused(value: dict[str, Any], refused: Refused) -> None:
    assert refused("PutItem", Item=key("p", "s") | {"a": value}).code == INVALID


@pytest.mark.parametrize(
    ("given", "stored"),
    [("1.50", "1.5"), ("1E3", "1000"), ("-0", "0"), ("007", "7"), ("1" * 38, "1" * 38)],
)
def test_numbers_are_stored_in_one_form(given: str, stored: str, engine: DynamoDbEngine) -> None:
    item = key("p", "s") | {"a": {"N": given}}
    engine.execute("PutItem", {"TableName": TABLE, "Item": item})
    found = get(engine, "p", "s")
    assert found is not None
    assert found["a"] == {"N": stored}


@pytest.mark.parametrize(
    "item",
    [
        {"pk": {"S": "p"}},
        key("", "s"),
        key("p", ""),
        key("p" * 2049, "s"),
        key("p", "s" * 1025),
        {"pk": {"N": "1"}, "sk": {"S": "s"}},
        key("p", "s") | {"g": {"N": "1"}},
        key("p", "s") | {"g": {"S": ""}},
        key("p", "s") | {"big": {"S": "x" * (400 * 1024)}},
    ],
)
def test_items_with_bad_keys_or_sizes_are_refused(item: dict[str, Any], refused: Refused) -> None:
    assert refused("PutItem", Item=item).code == INVALID


def test_an_empty_string_is_allowed_elsewhere(engine: DynamoDbEngine) -> None:
    put(engine, "p", "s", a="")
    assert get(engine, "p", "s") == key("p", "s") | {"a": {"S": ""}}


def test_a_key_with_other_attributes_does_not_match(refused: Refused) -> None:
    assert "does not match the schema" in refused("GetItem", Key={"pk": {"S": "p"}}).message
    assert refused("GetItem", Key=key("p", "s") | {"a": {"S": ""}}).code == INVALID


def test_a_table_that_does_not_exist_is_not_found(refused: Refused) -> None:
    assert refused("GetItem", TableName="none", Key={}).code == "ResourceNotFoundException"


# Expressions.


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("status = :v", {":v": {"S": "a"}}),  # a reserved word
        ("a = :missing", {":v": {"S": "a"}}),
        ("#a = :v", {":v": {"S": "a"}}),
        ("a = :v", {":v": {"S": "a"}, ":unused": {"S": "a"}}),
        ("a == :v", {":v": {"S": "a"}}),
        ("a = :v AND", {":v": {"S": "a"}}),
        ("((a = :v))", {":v": {"S": "a"}}),
        ("a < :v", {":v": {"BOOL": True}}),
        ("begins_with(a, :v)", {":v": {"N": "1"}}),
        ("attribute_exists(:v)", {":v": {"S": "a"}}),
        ("attribute_type(a, :v)", {":v": {"S": "Q"}}),
        ("a BETWEEN :v AND :w", {":v": {"S": "a"}, ":w": {"N": "1"}}),
        ("no_function(a)", {":v": {"S": "a"}}),
        ("", {":v": {"S": "a"}}),
        (" OR ".join(["a = :v"] * 600), {":v": {"S": "a"}}),
    ],
)
def test_bad_conditions_are_refused(
    condition: str, values: dict[str, Any], refused: Refused
) -> None:
    refusal = refused(
        "PutItem",
        Item=key("p", "s"),
        ConditionExpression=condition,
        ExpressionAttributeValues=values,
    )
    assert refusal.code == INVALID


def test_unused_names_are_refused(refused: Refused) -> None:
    refusal = refused("GetItem", Key=key("p", "s"), ExpressionAttributeNames={"#a": "a"})
    assert "unused in expressions: keys: {#a}" in refusal.message


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n = :one", True),
        ("n <> :one", False),
        ("absent <> :one", True),
        ("absent = :one", False),
        ("n < :two AND n >= :one", True),
        ("n BETWEEN :one AND :two", True),
        ("n IN (:two, :one)", True),
        ("NOT n IN (:two, :one)", False),
        ("t > :one", False),  # of another type
        ("begins_with(t, :te)", True),
        ("contains(t, :te)", True),
        ("contains(l, :te)", True),
        ("contains(ss, :te)", True),
        ("size(t) = :four", True),
        ("size(l) < :two", True),
        ("attribute_exists(m.deep[1])", True),
        ("attribute_not_exists(m.deep[2])", True),
        ("attribute_type(m, :M)", True),
        ("m.deep[0] = :one", True),
        ("n = :two OR (t = :te OR n = :one)", True),
        ("NOT (n = :two OR t = :te)", True),
        ("n = :two OR n = :one AND t = :te", False),  # AND binds more strongly
    ],
)
def test_conditions_mean_what_they_say(
    condition: str, expected: bool, engine: DynamoDbEngine
) -> None:
    put(engine, "p", "s", n=1, t="text", l=["te"], ss={"te"}, m={"deep": [1, "x"]})
    values = {":one": 1, ":two": 2, ":four": 4, ":te": "te", ":M": "M"}
    used = {name: value for name, value in values.items() if name in condition}
    request = {
        "TableName": TABLE,
        "Key": key("p", "s"),
        "ConditionExpression": condition,
        **({"ExpressionAttributeValues": encode_item(used)} if used else {}),
    }
    if expected:
        engine.execute("DeleteItem", request)
    else:
        with pytest.raises(Refusal, match="conditional request failed"):
            engine.execute("DeleteItem", request)


@pytest.mark.parametrize(
    "update",
    [
        "SET pk = :v",
        "SET a = :v, a = :v",
        "SET a = :v, a.b = :v",
        "SET a = :v SET b = :v",
        "SET a = absent",
        "SET absent.b = :v",
        "SET t = t + :v",
        "ADD t :v",
        "DELETE a :v",
        "SET l[0].x = :v",
        "SET a = unknown(:v)",
        "a = :v",
        "SET g = :v",  # a key of an index, of another type
    ],
)
def test_bad_updates_are_refused(update: str, engine: DynamoDbEngine) -> None:
    put(engine, "p", "s", t="text", l=["a"])
    request = {
        "TableName": TABLE,
        "Key": key("p", "s"),
        "UpdateExpression": update,
        **({"ExpressionAttributeValues": {":v": {"N": "1"}}} if ":v" in update else {}),
    }
    with pytest.raises(Refusal) as refused:
        engine.execute("UpdateItem", request)
    assert refused.value.code == INVALID
    assert get(engine, "p", "s") == key("p", "s") | encode_item({"t": "text", "l": ["a"]})


def test_an_update_changes_an_item_and_returns_what_is_asked_for(engine: DynamoDbEngine) -> None:
    put(engine, "p", "s", n=1, t="t", l=["a", "b", "c"], ss={"x", "y"}, m={"k": 1})
    values = {":one": 1, ":list": ["d"], ":set": {"x", "z"}, ":new": "new"}
    request = {
        "TableName": TABLE,
        "Key": key("p", "s"),
        "UpdateExpression": "SET l = list_append(l, :list), m.k = m.k - :one, o = n, "
        "d = if_not_exists(d, :new) REMOVE t ADD n :one, c :one DELETE ss :set",
        "ExpressionAttributeValues": encode_item(values),
        "ReturnValues": "ALL_NEW",
    }
    after = engine.execute("UpdateItem", request)["Attributes"]
    assert after == key("p", "s") | encode_item(
        {"n": 2, "l": ["a", "b", "c", "d"], "ss": {"y"}, "m": {"k": 0}, "o": 1, "d": "new", "c": 1}
    )
    request = {
        "TableName": TABLE,
        "Key": key("p", "s"),
        "UpdateExpression": "REMOVE l[0], l[1], c SET m.k = :one",
        "ExpressionAttributeValues": encode_item({":one": 1}),
        "ReturnValues": "UPDATED_NEW",
    }
    assert engine.execute("UpdateItem", request)["Attributes"]["m"] == {"M": {"k": {"N": "1"}}}
    found = get(engine, "p", "s")
    assert found is not None
    assert found["l"] == {"L": [{"S": "c"}, {"S": "d"}]}


def test_an_update_creates_an_item_that_is_missing(engine: DynamoDbEngine) -> None:
    request = {
        "TableName": TABLE,
        "Key": key("p", "s"),
        "UpdateExpression": "ADD c :one",
        "ExpressionAttributeValues": encode_item({":one": 1}),
    }
    engine.execute("UpdateItem", request)
    assert get(engine, "p", "s") == key("p", "s") | {"c": {"N": "1"}}


def test_a_failed_condition_shows_the_item_and_is_billed(
    engine: DynamoDbEngine, refused: Refused
) -> None:
    put(engine, "p", "s", a="x" * 2_000)
    before = engine.meter.units.written
    refusal = refused(
        "PutItem",
        Item=key("p", "s"),
        ConditionExpression="attribute_not_exists(pk)",
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )
    assert refusal.body["Item"]["a"] == {"S": "x" * 2_000}
    assert engine.meter.units.written - before == 2
    assert engine.meter.refused == {"ConditionalCheckFailedException": 1}


# Queries.


def test_a_query_reads_a_range_in_order(engine: DynamoDbEngine) -> None:
    for name in ("a1", "a2", "a3", "b1", "b2"):
        put(engine, "p", name)
    put(engine, "other", "a1")
    p = {"S": "p"}
    assert sort_keys(query(engine, "pk = :p", values={"p": p})) == ["a1", "a2", "a3", "b1", "b2"]
    backwards = query(engine, "pk = :p", values={"p": p}, ScanIndexForward=False)
    assert sort_keys(backwards) == ["b2", "b1", "a3", "a2", "a1"]
    for condition, expected in {
        "sk = :a": ["a2"],
        "sk > :a": ["a3", "b1", "b2"],
        "sk >= :a": ["a2", "a3", "b1", "b2"],
        "sk < :a": ["a1"],
        ":a > sk": ["a1"],
        "sk <= :a": ["a1", "a2"],
    }.items():
        found = query(engine, f"pk = :p AND {condition}", values={"p": p, "a": {"S": "a2"}})
        assert sort_keys(found) == expected
    values = {"p": p, "a": {"S": "a2"}, "b": {"S": "b1"}}
    between = query(engine, "pk = :p AND sk BETWEEN :a AND :b", values=values)
    assert sort_keys(between) == ["a2", "a3", "b1"]
    begun = query(engine, "begins_with(sk, :a) AND pk = :p", values={"p": p, "a": {"S": "b"}})
    assert sort_keys(begun) == ["b1", "b2"]


def test_a_query_goes_on_after_its_last_key(engine: DynamoDbEngine) -> None:
    for n in range(5):
        put(engine, "p", str(n), g="g", n=n // 2, odd=n % 2)
    for more in ({}, {"IndexName": "by-g"}):
        for forward in (True, False):
            found: list[str] = []
            start: dict[str, Any] = {}
            while True:
                name = "g" if more else "pk"
                values = {"p": {"S": "g" if more else "p"}, "one": {"N": "1"}}
                page = query(
                    engine,
                    f"{name} = :p",
                    values=values,
                    Limit=2,
                    FilterExpression="odd = :one",
                    ScanIndexForward=forward,
                    **more,
                    **start,
                )
                assert page["ScannedCount"] <= 2
                found += sort_keys(page)
                if "LastEvaluatedKey" not in page:
                    break
                start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
            assert found == (["1", "3"] if forward else ["3", "1"])


def test_a_page_ends_at_1_mb(engine: DynamoDbEngine) -> None:
    engine.knobs.writes_per_second = None
    for n in range(4):
        put(engine, "p", str(n), a="x" * 390_000)
    page = query(engine, "pk = :p", values={"p": {"S": "p"}})
    assert sort_keys(page) == ["0", "1"]
    assert page["LastEvaluatedKey"] == key("p", "1")


@pytest.mark.parametrize(
    "request_",
    [
        {"KeyConditionExpression": "sk = :v"},
        {"KeyConditionExpression": "pk > :v"},
        {"KeyConditionExpression": "pk = :v OR pk = :v"},
        {"KeyConditionExpression": "pk = :v AND a = :v"},
        {"KeyConditionExpression": "pk = :v AND sk <> :v"},
        {"KeyConditionExpression": "pk = :v", "FilterExpression": "sk = :v"},
        {"KeyConditionExpression": "pk = :v", "Limit": 0},
        {"KeyConditionExpression": "pk = :v", "ExclusiveStartKey": {"pk": {"S": "v"}}},
        {"KeyConditionExpression": "pk = :v", "ExclusiveStartKey": key("another", "s")},
        {"KeyConditionExpression": "g = :v", "IndexName": "by-g", "ConsistentRead": True},
        {"KeyConditionExpression": "g = :v", "IndexName": "none"},
        {"FilterExpression": "a = :v"},
    ],
)
def test_bad_queries_are_refused(request_: dict[str, Any], refused: Refused) -> None:
    values = {":v": {"S": "v"}}
    assert refused("Query", ExpressionAttributeValues=values, **request_).code == INVALID


def test_an_index_has_its_projection_and_only_items_with_its_keys(engine: DynamoDbEngine) -> None:
    put(engine, "p", "1", g="g", n=1, a="a")
    put(engine, "p", "2", g="g")
    values = {"g": {"S": "g"}}
    assert sort_keys(query(engine, "g = :g", values=values, IndexName="by-g")) == ["1"]
    narrow = query(engine, "g = :g", values=values, IndexName="by-g-keys")["Items"]
    assert [sorted(item) for item in narrow] == [["g", "pk", "sk"]] * 2


def test_a_projection_picks_paths(engine: DynamoDbEngine) -> None:
    put(engine, "p", "s", m={"a": [1, 2, 3], "b": 1}, status="x")
    request = {
        "TableName": TABLE,
        "Key": key("p", "s"),
        "ProjectionExpression": "m.a[2], m.a[0], #s, absent",
        "ExpressionAttributeNames": {"#s": "status"},
    }
    item = engine.execute("GetItem", request)["Item"]
    assert item == encode_item({"m": {"a": [1, 3]}, "status": "x"})


# Batches and transactions.


def test_batches_have_their_limits(engine: DynamoDbEngine, refused: Refused) -> None:
    puts = [{"PutRequest": {"Item": key("p", str(n))}} for n in range(26)]
    engine.execute("BatchWriteItem", {"RequestItems": {TABLE: puts[:25]}})
    assert refused("BatchWriteItem", RequestItems={TABLE: puts}).code == INVALID
    assert refused("BatchWriteItem", RequestItems={TABLE: puts[:1] * 2}).code == INVALID
    keys = [key("p", str(n)) for n in range(101)]
    found = engine.execute("BatchGetItem", {"RequestItems": {TABLE: {"Keys": keys[:100]}}})
    assert len(found["Responses"][TABLE]) == 25
    assert refused("BatchGetItem", RequestItems={TABLE: {"Keys": keys}}).code == INVALID
    assert refused("BatchGetItem", RequestItems={TABLE: {"Keys": keys[:1] * 2}}).code == INVALID


def transaction(*actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = [
        {kind: {"TableName": TABLE, **action} for kind, action in one.items()} for one in actions
    ]
    return {"TransactItems": named, **more}


def a_put(sk: str, **fields: object) -> dict[str, Any]:
    item = key("p", sk) | encode_item(fields)
    return {
        "Put": {
            "Item": item,
            "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    }


def test_a_transaction_does_all_or_nothing(engine: DynamoDbEngine, refused: Refused) -> None:
    engine.execute("TransactWriteItems", transaction(a_put("1", a=1), a_put("2")))
    refusal = refused("TransactWriteItems", **transaction(a_put("3"), a_put("1"), a_put("4")))
    assert refusal.code == "TransactionCanceledException"
    reasons = refusal.body["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["None", "ConditionalCheckFailed", "None"]
    assert reasons[1]["Item"] == key("p", "1") | {"a": {"N": "1"}}
    assert get(engine, "p", "3") is None
    check = {
        "ConditionCheck": {"Key": key("p", "9"), "ConditionExpression": "attribute_exists(pk)"}
    }
    assert refused("TransactWriteItems", **transaction(a_put("3"), check)).code == refusal.code


def test_a_transaction_has_its_limits(engine: DynamoDbEngine, refused: Refused) -> None:
    many = [a_put(str(n)) for n in range(101)]
    assert refused("TransactWriteItems", **transaction(*many)).code == INVALID
    assert refused("TransactWriteItems", **transaction(a_put("1"), a_put("1"))).code == INVALID
    large = [a_put(str(n), a="x" * 390_000) for n in range(11)]
    assert "4MB" in refused("TransactWriteItems", **transaction(*large)).message
    assert refused("TransactWriteItems", TransactItems=[]).code == INVALID
    engine.execute("TransactWriteItems", transaction(*many[:100]))


def test_a_token_makes_a_transaction_idempotent_for_ten_minutes(
    engine: DynamoDbEngine, clock: FakeClock, refused: Refused
) -> None:
    add = {
        "Update": {
            "Key": key("p", "1"),
            "UpdateExpression": "ADD c :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
    }
    request = transaction(add, ClientRequestToken="token")
    engine.execute("TransactWriteItems", request)
    written = engine.meter.units.written
    clock.advance(timedelta(minutes=9))
    engine.execute("TransactWriteItems", request)
    assert get(engine, "p", "1") == key("p", "1") | {"c": {"N": "1"}}
    assert engine.meter.units.written == written
    assert engine.meter.units.consumed == 2 + 0.5  # the repetition, and the get
    other = transaction(a_put("2"), ClientRequestToken="token")
    code = refused("TransactWriteItems", **other).code
    assert code == "IdempotentParameterMismatchException"
    clock.advance(timedelta(minutes=2))
    engine.execute("TransactWriteItems", request)
    assert get(engine, "p", "1") == key("p", "1") | {"c": {"N": "2"}}
    too_long = transaction(a_put("2"), ClientRequestToken="x" * 37)
    assert refused("TransactWriteItems", **too_long).code == INVALID


def test_an_update_that_does_not_fit_its_item_cancels_the_transaction(
    engine: DynamoDbEngine, refused: Refused
) -> None:
    put(engine, "p", "1", t="text")
    add = {
        "Update": {
            "Key": key("p", "1"),
            "UpdateExpression": "ADD t :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
    }
    refusal = refused("TransactWriteItems", **transaction(a_put("2"), add))
    codes = [reason["Code"] for reason in refusal.body["CancellationReasons"]]
    assert codes == ["None", "ValidationError"]


def test_a_running_transaction_is_a_conflict(
    engine: DynamoDbEngine, clock: FakeClock, refused: Refused
) -> None:
    engine.knobs.transaction_time = timedelta(seconds=1)
    engine.execute("TransactWriteItems", transaction(a_put("1")))
    assert refused("DeleteItem", Key=key("p", "1")).code == "TransactionConflictException"
    refusal = refused("TransactWriteItems", **transaction({"Delete": {"Key": key("p", "1")}}))
    assert refusal.body["CancellationReasons"][0]["Code"] == "TransactionConflict"
    clock.advance(timedelta(seconds=2))
    engine.execute("DeleteItem", {"TableName": TABLE, "Key": key("p", "1")})


def test_a_transactional_read_gives_items_in_order(engine: DynamoDbEngine) -> None:
    put(engine, "p", "1")
    gets = [{"Get": {"Key": key("p", sk)}} for sk in ("2", "1")]
    found = engine.execute("TransactGetItems", transaction(*gets))["Responses"]
    assert found == [{}, {"Item": key("p", "1")}]


# Time.


def test_an_index_is_late(engine: DynamoDbEngine, clock: FakeClock) -> None:
    engine.knobs.index_lag = timedelta(seconds=10)
    put(engine, "p", "1", g="a", n=1)
    put(engine, "p", "1", g="b", n=1)

    def indexed(group: str) -> list[str]:
        return sort_keys(query(engine, "g = :g", values={"g": {"S": group}}, IndexName="by-g"))

    assert get(engine, "p", "1") is not None
    assert indexed("a") == indexed("b") == []
    clock.advance(timedelta(seconds=11))
    assert indexed("a") == []
    assert indexed("b") == ["1"]


def test_expired_items_are_removed_late(engine: DynamoDbEngine, clock: FakeClock) -> None:
    ends = int(clock.now().timestamp()) + 60
    put(engine, "p", "before", ttl=ends, g="g", n=1)
    spec = {"AttributeName": "ttl", "Enabled": True}
    engine.execute("UpdateTimeToLive", {"TableName": TABLE, "TimeToLiveSpecification": spec})
    put(engine, "p", "1", ttl=ends)
    put(engine, "p", "2", ttl=ends)
    put(engine, "p", "2", ttl=ends + 10 * 86_400)
    put(engine, "p", "3", ttl="text")
    clock.advance(timedelta(days=1))
    assert get(engine, "p", "1") is not None
    clock.advance(timedelta(days=1, minutes=2))
    left = sort_keys(query(engine, "pk = :p", values={"p": {"S": "p"}}))
    assert left == ["2", "3"]
    clock.advance(timedelta(seconds=1))
    assert query(engine, "g = :g", values={"g": {"S": "g"}}, IndexName="by-g")["Count"] == 0


def test_an_expiry_of_more_than_five_years_ago_is_taken_for_a_mistake(
    engine: DynamoDbEngine, clock: FakeClock
) -> None:
    spec = {"AttributeName": "ttl", "Enabled": True}
    engine.execute("UpdateTimeToLive", {"TableName": TABLE, "TimeToLiveSpecification": spec})
    put(engine, "p", "1", ttl=0)
    clock.advance(timedelta(days=3))
    assert get(engine, "p", "1") is not None


def test_a_hot_partition_is_throttled_and_others_are_not(
    engine: DynamoDbEngine, clock: FakeClock, refused: Refused
) -> None:
    engine.knobs.writes_per_second = 10
    for n in range(10):
        put(engine, "hot", str(n))
    refusal = refused("PutItem", Item=key("hot", "10"))
    assert refusal.code == "ThrottlingException"
    put(engine, "cold", "1")
    clock.advance(timedelta(seconds=0.5))
    for n in range(5):
        put(engine, "hot", str(n))
    assert refused("PutItem", Item=key("hot", "10")).code == "ThrottlingException"
    puts = [{"PutRequest": {"Item": key(pk, "1")}} for pk in ("hot", "cold")]
    left = engine.execute("BatchWriteItem", {"RequestItems": {TABLE: puts}})
    assert left["UnprocessedItems"] == {TABLE: puts[:1]}
    assert refused("BatchWriteItem", RequestItems={TABLE: puts[:1]}).code == "ThrottlingException"
    canceled = refused("TransactWriteItems", **transaction({"Delete": {"Key": key("hot", "1")}}))
    assert canceled.body["CancellationReasons"][0]["Code"] == "ThrottlingError"


def test_a_hot_index_throttles_its_table(engine: DynamoDbEngine, refused: Refused) -> None:
    engine.knobs.writes_per_second = 5
    for n in range(5):
        put(engine, str(n), "s", g="one", n=n)
    item = key("another", "s") | encode_item({"g": "one", "n": 1})
    assert refused("PutItem", Item=item).code == "ThrottlingException"
    put(engine, "another", "s", g="other", n=1)


def test_a_changed_index_key_uses_both_partitions(engine: DynamoDbEngine, refused: Refused) -> None:
    engine.knobs.writes_per_second = 4
    for n in range(3):
        put(engine, str(n), "s", g="old", n=1)
    put(engine, "0", "s", g="new", n=1)  # a delete of one entry and a put of another
    item = key("x", "s") | encode_item({"g": "old", "n": 1})
    assert refused("PutItem", Item=item).code == "ThrottlingException"
    for n in range(3):
        put(engine, f"y{n}", "s", g="new", n=1)


def test_reads_are_throttled_by_partition(engine: DynamoDbEngine, refused: Refused) -> None:
    engine.knobs.reads_per_second = 2
    put(engine, "p", "1")
    for _ in range(4):
        get(engine, "p", "1")
    assert refused("GetItem", Key=key("p", "1")).code == "ThrottlingException"
    keys = [key("p", "1"), key("other", "1")]
    left = engine.execute("BatchGetItem", {"RequestItems": {TABLE: {"Keys": keys}}})
    assert left["UnprocessedKeys"] == {TABLE: {"Keys": keys[:1]}}


# Requests.


def test_a_field_that_the_api_does_not_have_is_refused(refused: Refused) -> None:
    refusal = refused("GetItem", Key=key("p", "s"), ConsistentReads=True)
    assert refusal.message == "GetItemInput has no field ConsistentReads"
    put_request = {"Put": {"TableName": TABLE, "Item": key("p", "s"), "ReturnValues": "NONE"}}
    refusal = refused("TransactWriteItems", TransactItems=[put_request])
    assert refusal.message == "Put has no field ReturnValues"


def test_requests_are_counted_by_what_their_statements_do(engine: DynamoDbEngine) -> None:
    text = f"insert into {TABLE} value {{'pk': 'p', 'sk': '1'}}"
    engine.execute("BatchExecuteStatement", {"Statements": [{"Statement": text}]})
    query(engine, "pk = :p", values={"p": {"S": "p"}})
    assert engine.meter.by_kind["BatchExecuteStatement INSERT"].items == 1
    assert engine.meter.by_kind["Query"].items == 1


# Tables.


def test_a_table_that_is_being_created_is_not_found(clock: FakeClock) -> None:
    engine = DynamoDbEngine(clock, Knobs(creation_time=timedelta(seconds=5)))
    engine.execute("CreateTable", table_request())
    described = engine.execute("DescribeTable", {"TableName": TABLE})["Table"]
    assert described["TableStatus"] == "CREATING"
    with pytest.raises(Refusal) as caught:
        put(engine, "p", "1")
    assert caught.value.code == "ResourceNotFoundException"
    clock.advance(timedelta(seconds=5))
    put(engine, "p", "1")
    assert engine.execute("DescribeTable", {"TableName": TABLE})["Table"]["TableStatus"] == "ACTIVE"


def test_tables_are_created_described_and_deleted(engine: DynamoDbEngine, refused: Refused) -> None:
    described = engine.execute("DescribeTable", {"TableName": TABLE})["Table"]
    assert described["TableStatus"] == "ACTIVE"
    assert refused("CreateTable", **table_request()).code == "ResourceInUseException"
    bad = table_request("other")
    bad["AttributeDefinitions"] = bad["AttributeDefinitions"][:2]
    assert refused("CreateTable", **bad).code == INVALID
    assert refused("CreateTable", **table_request("x")).code == INVALID
    engine.execute("DeleteTable", {"TableName": TABLE})
    assert refused("DescribeTable").code == "ResourceNotFoundException"


def test_the_time_to_live_is_enabled_once(engine: DynamoDbEngine, refused: Refused) -> None:
    spec = {"AttributeName": "ttl", "Enabled": True}
    engine.execute("UpdateTimeToLive", {"TableName": TABLE, "TimeToLiveSpecification": spec})
    told = engine.execute("DescribeTimeToLive", {"TableName": TABLE})["TimeToLiveDescription"]
    assert told == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    assert refused("UpdateTimeToLive", TimeToLiveSpecification=spec).code == INVALID


def test_capacity_is_reported_where_it_is_asked_for(engine: DynamoDbEngine) -> None:
    item = key("p", "s") | encode_item({"g": "g", "n": 1, "a": "x" * 2_000})
    request = {"TableName": TABLE, "Item": item, "ReturnConsumedCapacity": "INDEXES"}
    told = engine.execute("PutItem", request)["ConsumedCapacity"]
    assert told == {
        "TableName": TABLE,
        "CapacityUnits": 5.0,
        "Table": {"CapacityUnits": 2.0},
        "GlobalSecondaryIndexes": {
            "by-g": {"CapacityUnits": 2.0},
            "by-g-keys": {"CapacityUnits": 1.0},
        },
    }
