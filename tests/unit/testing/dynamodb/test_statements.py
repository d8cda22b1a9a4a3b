"""PartiQL of the fake."""

from typing import Any

import pytest

from conveyor.adapters.aws.attribute_values import encode, encode_item
from conveyor.testing.dynamodb.engine import DynamoDbEngine
from conveyor.testing.dynamodb.refusals import Refusal
from tests.harness.dynamodb_tables import TABLE, key

INSERT = f"INSERT INTO \"{TABLE}\" VALUE {{'pk': ?, 'sk': ?, 'a': ?}}"
UPDATE = f'UPDATE "{TABLE}" SET a = ? WHERE pk = ? AND sk = ?'
DELETE = f'DELETE FROM "{TABLE}" WHERE pk = ? AND sk = ?'
SELECT = f'SELECT * FROM "{TABLE}" WHERE pk = ? AND sk = ?'


def statement(text: str, *parameters: object, **more: Any) -> dict[str, Any]:
    values = {"Parameters": [encode(one) for one in parameters]} if parameters else {}
    return {"Statement": text, **values, **more}


def run(engine: DynamoDbEngine, text: str, *parameters: object, **more: Any) -> list[Any]:
    items: list[Any] = engine.execute("ExecuteStatement", statement(text, *parameters, **more))[
        "Items"
    ]
    return items


def batch(engine: DynamoDbEngine, *statements: dict[str, Any]) -> list[dict[str, Any]]:
    answer = engine.execute("BatchExecuteStatement", {"Statements": statements})
    entries: list[dict[str, Any]] = answer["Responses"]
    return entries


def test_a_row_is_inserted_once(engine: DynamoDbEngine) -> None:
    assert run(engine, INSERT, "p", "s", 1) == []
    assert run(engine, SELECT, "p", "s") == [key("p", "s") | {"a": {"N": "1"}}]
    with pytest.raises(Refusal) as refused:
        run(engine, INSERT, "p", "s", 2)
    assert refused.value.code == "DuplicateItemException"


def test_literals_of_every_type_are_stored(engine: DynamoDbEngine) -> None:
    run(
        engine,
        f"INSERT INTO {TABLE} VALUE {{'pk': 'it''s', 'sk': 's', 'l': [1, -2.5, 'x'], "
        "'m': {'k': true, 'n': null}, 'e': {}, 'ss': <<'a', 'b'>>, 'ns': <<1, 2>>}",
    )
    [item] = run(engine, f"SELECT * FROM {TABLE} WHERE pk = 'it''s' AND sk = 's'")
    fields = {"l": [1, -2.5, "x"], "m": {"k": True, "n": None}, "e": {}, "ss": {"a", "b"}}
    assert item == key("it's", "s") | encode_item(fields | {"ns": {1, 2}})


def test_an_update_is_conditional_and_returns_rows(engine: DynamoDbEngine) -> None:
    run(engine, INSERT, "p", "s", 1)
    told = run(engine, f"{UPDATE} AND a < ? RETURNING ALL NEW *", 2, "p", "s", 2)
    assert told == [key("p", "s") | {"a": {"N": "2"}}]
    with pytest.raises(Refusal) as refused:
        run(
            engine,
            f"{UPDATE} AND a < ?",
            3,
            "p",
            "s",
            2,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert refused.value.code == "ConditionalCheckFailedException"
    assert refused.value.body["Item"]["a"] == {"N": "2"}
    for clause, expected in {
        "ALL OLD *": key("p", "s") | {"a": {"N": "2"}},
        "MODIFIED OLD *": {"a": {"N": "3"}},
        "MODIFIED NEW *": {"a": {"N": "5"}},
    }.items():
        [item] = run(
            engine, f"UPDATE {TABLE} SET a = a + 1 WHERE pk='p' AND sk='s' RETURNING {clause}"
        )
        assert item == expected


def test_an_update_of_a_missing_row_fails(engine: DynamoDbEngine) -> None:
    with pytest.raises(Refusal) as refused:
        run(engine, UPDATE, 1, "p", "s")
    assert refused.value.code == "ConditionalCheckFailedException"


def test_several_clauses_set_and_remove(engine: DynamoDbEngine) -> None:
    run(engine, f"INSERT INTO {TABLE} VALUE {{'pk':'p','sk':'s','a':1,'l':[1],'ss':<<'a'>>}}")
    run(
        engine,
        f"UPDATE {TABLE} SET l = list_append(l, [2]) SET ss = set_add(ss, <<'b'>>) SET b = 'x' "
        "REMOVE a WHERE pk='p' AND sk='s' AND c IS MISSING AND a IS NOT MISSING",
    )
    [item] = run(engine, SELECT, "p", "s")
    assert item == key("p", "s") | encode_item({"l": [1, 2], "ss": {"a", "b"}, "b": "x"})


def test_a_delete_is_conditional_and_repeatable(engine: DynamoDbEngine) -> None:
    run(engine, INSERT, "p", "s", 1)
    with pytest.raises(Refusal) as refused:
        run(engine, f"{DELETE} AND a = 2", "p", "s")
    assert refused.value.code == "ConditionalCheckFailedException"
    [old] = run(engine, f"{DELETE} RETURNING ALL OLD *", "p", "s")
    assert old["a"] == {"N": "1"}
    assert run(engine, DELETE, "p", "s") == []


def test_a_select_reads_a_partition_an_index_and_columns(engine: DynamoDbEngine) -> None:
    for n in range(4):
        run(engine, f"INSERT INTO {TABLE} VALUE {{'pk':'p','sk':'{n}','g':'g','n':{n}}}")
    rows = run(engine, f"SELECT sk FROM {TABLE} WHERE pk='p' AND sk BETWEEN '1' AND '3' AND n < 3")
    assert rows == [{"sk": {"S": "1"}}, {"sk": {"S": "2"}}]
    rows = run(engine, f"SELECT n FROM {TABLE}.\"by-g\" WHERE g='g' AND n >= 2 ORDER BY n DESC")
    assert rows == [{"n": {"N": "3"}}, {"n": {"N": "2"}}]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT",
        f"UPDATE {TABLE} SET a = 1 WHERE pk = 'p'",
        f"UPDATE {TABLE} SET a = 1, b = 2 WHERE pk = 'p' AND sk = 's'",
        f"UPDATE {TABLE} SET pk = 'q' WHERE pk = 'p' AND sk = 's'",
        f"UPDATE {TABLE} SET status = 'q' WHERE pk = 'p' AND sk = 's'",
        f"UPDATE {TABLE} SET a = if_not_exists(a, 1) WHERE pk = 'p' AND sk = 's'",
        f"UPDATE {TABLE} SET a = ? WHERE pk = 'p' AND sk = 's'",
        f"UPDATE {TABLE} SET a = 1 WHERE pk = 'p' AND sk = 's' RETURNING SOME NEW *",
        f"DELETE FROM {TABLE} WHERE pk = 'p' AND sk = 's' RETURNING ALL NEW *",
        f"INSERT INTO {TABLE} VALUE {{'pk': 'p'}}",
        f"INSERT INTO {TABLE} VALUE {{'pk': '', 'sk': 's'}}",
        f"SELECT * FROM {TABLE}",
        f"SELECT * FROM {TABLE}.nowhere WHERE g = 'g'",
    ],
)
def test_bad_statements_are_refused(text: str, engine: DynamoDbEngine) -> None:
    run(engine, INSERT, "p", "s", 1)
    with pytest.raises(Refusal) as refused:
        run(engine, text)
    assert refused.value.code == "ValidationException"


def test_a_batch_answers_for_each_statement(engine: DynamoDbEngine) -> None:
    run(engine, INSERT, "p", "1", 1)
    entries = batch(
        engine,
        statement(INSERT, "p", "1", 1),
        statement(INSERT, "p", "2", 1),
        statement(UPDATE + " AND a = 9", 1, "p", "3"),
        statement("nonsense"),
        statement(DELETE + " AND a = 9", "p", "4", ReturnValuesOnConditionCheckFailure="ALL_OLD"),
        statement("UPDATE nowhere SET a = 1 WHERE pk = 'p'"),
    )
    codes = [entry.get("Error", {}).get("Code") for entry in entries]
    assert codes == [
        "DuplicateItem",
        None,
        "ConditionalCheckFailed",
        "ValidationError",
        None,
        "ResourceNotFound",
    ]


def test_claims_of_a_batch_give_what_is_stored_whether_they_hold_or_not(
    engine: DynamoDbEngine,
) -> None:
    for n in range(2):
        run(engine, INSERT, "p", str(n), n)
    claim = f"{UPDATE} AND a = ? RETURNING ALL NEW *"
    taken, other = batch(
        engine,
        statement(claim, "mine", "p", "0", 0, ReturnValuesOnConditionCheckFailure="ALL_OLD"),
        statement(claim, "mine", "p", "1", 0, ReturnValuesOnConditionCheckFailure="ALL_OLD"),
    )
    assert taken["Item"]["a"] == {"S": "mine"}
    assert other["Error"]["Code"] == "ConditionalCheckFailed"
    assert other["Error"]["Item"]["a"] == {"N": "1"}
    assert engine.meter.units.written == 4


def test_a_batch_has_its_rules(engine: DynamoDbEngine) -> None:
    for statements in (
        [],
        [statement(SELECT, "p", str(n)) for n in range(26)],
        [statement(SELECT, "p", "1"), statement(DELETE, "p", "2")],
        [statement(DELETE, "p", "1"), statement(DELETE, "p", "1")],
    ):
        with pytest.raises(Refusal) as refused:
            batch(engine, *statements)
        assert refused.value.code == "ValidationException"
    [entry] = batch(engine, statement(f"SELECT * FROM {TABLE} WHERE pk = 'p'"))
    assert entry["Error"]["Code"] == "ValidationError"


def test_statements_of_a_batch_are_throttled_one_by_one(engine: DynamoDbEngine) -> None:
    engine.knobs.writes_per_second = 2
    run(engine, INSERT, "hot", "1", 1)
    run(engine, INSERT, "hot", "2", 1)
    entries = batch(engine, statement(INSERT, "hot", "3", 1), statement(INSERT, "cold", "1", 1))
    assert [entry.get("Error", {}).get("Code") for entry in entries] == ["ThrottlingError", None]
