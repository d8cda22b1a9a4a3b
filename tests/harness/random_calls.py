"""Random calls to DynamoDB on a few items, so that most of them meet what others left."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

from conveyor.adapters.aws.attribute_values import encode
from tests.harness.dynamodb_tables import key

PARTITIONS, SORTS, GROUPS = ("p0", "p1"), ("s0", "s1", "s2", "t0"), ("g0", "g1")
WORDS = ("", "a", "ab", "abc", "b", "ä", "😀")
NUMBERS = (-1, 0, 1, 2, 10, 0.5, 12345678901234567890)
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")

Call = tuple[str, dict[str, Any]]


class RandomCalls:
    """Calls on one table. Left out is what ministack does otherwise than AWS, or may do:

    - arithmetic, `list_append` and paths into values of other types, or of missing attributes;
    - comparisons of two missing attributes, `begins_with` of values that are not strings;
    - filters on attributes that an index does not have;
    - batches of statements with a key twice, or that mix reads and writes.
    """

    def __init__(self, table: str, seed: str) -> None:
        self.table = table
        self.random = Random(seed)
        self._values: dict[str, Any] = {}

    def next(self) -> Call:
        kinds = (
            self._put, self._put, self._update, self._update, self._update, self._delete, self._get,
            self._batch_get, self._batch_write, self._query, self._query, self._transaction,
            self._transaction, self._transactional_get, self._statement, self._statements,
        )  # fmt: skip
        self._values = {}
        return self.random.choice(kinds)()

    # Values.

    def _one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def _key(self) -> dict[str, Any]:
        return key(self._one(*PARTITIONS), self._one(*SORTS))

    def _keys(self, most: int) -> list[dict[str, Any]]:
        """Different ones."""
        every = [key(pk, sk) for pk in PARTITIONS for sk in SORTS]
        return self.random.sample(every, self.random.randint(1, most))

    def _scalar(self) -> object:
        return self._one(self._one(*WORDS), self._one(*NUMBERS), True, None, b"\x00\xff")

    def _any(self) -> object:
        return self._one(
            self._scalar(),
            self._scalar(),
            [self._scalar() for _ in range(self.random.randint(0, 3))],
            {name: self._scalar() for name in self.random.sample("xyz", self.random.randint(0, 2))},
            set(self.random.sample(WORDS[1:], 2)),
            set(self.random.sample((1, 2, 3), 2)),
        )

    def _fields(self) -> dict[str, Any]:
        fields = {
            name: self._any() for name in self.random.sample("abcdem", self.random.randint(0, 4))
        }
        if self.random.random() < 0.5:
            fields |= {"g": self._one(*GROUPS), "n": self._one(1, 2, 3)}
        return {name: encode(value) for name, value in fields.items()}

    def _value(self, value: object) -> str:
        name = f":v{len(self._values)}"
        self._values[name] = encode(value)
        return name

    # Expressions.

    def _path(self) -> str:
        return str(self._one("a", "b", "c", "d", "e", "m.x", "m.y", "a[0]", "b[1]", "g", "n"))

    def _condition(self, depth: int = 0) -> str:
        if depth < 2 and self.random.random() < 0.3:
            first, second = self._condition(depth + 1), self._condition(2)
            return str(self._one(f"{first} AND {second}", f"({first} OR {second})", f"NOT {first}"))
        kind = self.random.randrange(8)
        path = self._path()
        match kind:
            case 0:
                return f"attribute_exists({path})"
            case 1:
                return f"attribute_not_exists({path})"
            case 2:
                return f"begins_with(g, {self._value(self._one('g', 'g0'))})"
            case 3:
                return f"contains({path}, {self._value(self._one('a', 1, 2))})"
            case 4:
                kinds = ("S", "N", "L", "M", "SS", "NS", "BOOL", "NULL", "B")
                return f"attribute_type({path}, {self._value(self._one(*kinds))})"
            case 5:
                return f"{path} BETWEEN {self._value(0)} AND {self._value(2)}"
            case 6:
                return f"{path} IN ({self._value(self._scalar())}, {self._value(self._scalar())})"
            case _:
                operand = self._value(self._one("a", 1))
                return f"{path} {self._one(*COMPARISONS)} {operand}"

    def _with_values(self, request: dict[str, Any]) -> dict[str, Any]:
        texts = " ".join(text for name, text in request.items() if name.endswith("Expression"))
        used = set(re.findall(r":v\d+", texts))
        if values := {name: self._values[name] for name in self._values if name in used}:
            request["ExpressionAttributeValues"] = values
        self._values = {}
        return request

    def _conditional(self, request: dict[str, Any], share: float = 0.5) -> dict[str, Any]:
        if self.random.random() < share:
            request["ConditionExpression"] = self._condition()
            if self.random.random() < 0.5:
                request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return self._with_values(request)

    def _update_expression(self) -> str:
        attributes = self.random.sample("abcde", 4)
        clauses = []
        if self.random.random() < 0.7:
            clauses.append(
                "SET " + ", ".join(self._assignments(attributes.pop(), attributes.pop()))
            )
        if self.random.random() < 0.3:
            clauses.append(f"REMOVE {attributes.pop()}")
        if self.random.random() < 0.4 or not clauses:
            change = self._value(self._one(1, -1, 0.5, {"a", "b"}))
            clauses.append(f"ADD {attributes.pop()} {change}")
        return " ".join(clauses)

    def _assignments(self, one: str, other: str) -> list[str]:
        # `k` is a number or missing, `l` a list or missing: emulators accept operands of any type.
        choices: list[Callable[[], str]] = [
            lambda: f"{other} = if_not_exists({other}, {self._value(self._any())})",
            lambda: f"{other} = if_not_exists(d, {self._value(self._any())})",
            lambda: f"k = if_not_exists(k, {self._value(0)}) + {self._value(1)}",
            lambda: f"k = if_not_exists(k, {self._value(0)}) - {self._value(0.5)}",
            lambda: f"l = list_append(if_not_exists(l, {self._value([])}), {self._value(['z'])})",
        ]
        return [f"{one} = {self._value(self._any())}", self.random.choice(choices)()]

    # Calls.

    def _named(self, **request: Any) -> dict[str, Any]:
        return {"TableName": self.table, **request}

    def _put(self) -> Call:
        request = self._named(Item=self._key() | self._fields())
        request["ReturnValues"] = self._one("NONE", "ALL_OLD")
        return "PutItem", self._conditional(request, 0.3)

    def _delete(self) -> Call:
        request = self._named(Key=self._key(), ReturnValues=self._one("NONE", "ALL_OLD"))
        return "DeleteItem", self._conditional(request, 0.7)

    def _update(self) -> Call:
        request = self._named(Key=self._key(), UpdateExpression=self._update_expression())
        request["ReturnValues"] = self._one("NONE", "ALL_OLD", "ALL_NEW")
        return "UpdateItem", self._conditional(request)

    def _get(self) -> Call:
        request = self._named(Key=self._key(), ConsistentRead=self._one(True, False))
        if self.random.random() < 0.4:
            request["ProjectionExpression"] = self._one("a", "a, b", "pk, m.x", "m, g", "b[0]")
        return "GetItem", request

    def _batch_get(self) -> Call:
        return "BatchGetItem", {"RequestItems": {self.table: {"Keys": self._keys(8)}}}

    def _batch_write(self) -> Call:
        writes = [
            self._one(
                {"PutRequest": {"Item": one | self._fields()}}, {"DeleteRequest": {"Key": one}}
            )
            for one in self._keys(5)
        ]
        return "BatchWriteItem", {"RequestItems": {self.table: writes}}

    def _query(self) -> Call:
        index = self._one(None, None, "by-g", "by-g-keys")
        if index is None:
            condition = f"pk = {self._value(self._one(*PARTITIONS))}" + self._sort("sk", SORTS)
        elif index == "by-g":
            condition = f"g = {self._value(self._one(*GROUPS))}" + self._sort("n", (1, 2, 3))
        else:
            condition = f"g = {self._value(self._one(*GROUPS))}" + self._sort("sk", SORTS)
        request = self._named(KeyConditionExpression=condition)
        if index != "by-g-keys":
            request["FilterExpression"] = f"{self._one('a', 'b', 'm.x')} <> {self._value(1)}"
        if index:
            request["IndexName"] = index
        # In an index items of the same keys have no order.
        elif self.random.random() < 0.5:
            request["Limit"] = self.random.randint(1, 4)
            request["ScanIndexForward"] = self._one(True, False)
            if self.random.random() < 0.3:
                pk = next(iter(self._values.values()))
                request["ExclusiveStartKey"] = {"pk": pk, "sk": {"S": self._one(*SORTS)}}
        return "Query", self._with_values(request)

    def _sort(self, name: str, choices: tuple[Any, ...]) -> str:
        low, high = sorted(self.random.choices(choices, k=2))
        return str(self._one(
            lambda: "",
            lambda: f" AND {name} BETWEEN {self._value(low)} AND {self._value(high)}",
            lambda: f" AND {name} {self._one('=', '<', '<=', '>', '>=')} {self._value(low)}",
            lambda: f" AND begins_with({name}, {self._value('s')})" if name == "sk" else "",
        )())  # fmt: skip

    def _transaction(self) -> Call:
        actions = [self._action(one) for one in self._keys(4)]
        request: dict[str, Any] = {"TransactItems": actions}
        if self.random.random() < 0.3:
            request["ClientRequestToken"] = f"token-{self.random.randrange(3)}-{self.table[-8:]}"
        return "TransactWriteItems", request

    def _action(self, one: dict[str, Any]) -> dict[str, Any]:
        self._values = {}
        match self.random.randrange(4):
            case 0:
                return {"Put": self._conditional(self._named(Item=one | self._fields()), 0.3)}
            case 1:
                request = self._named(Key=one, UpdateExpression=self._update_expression())
                return {"Update": self._conditional(request, 0.3)}
            case 2:
                return {"Delete": self._conditional(self._named(Key=one), 0.3)}
            case _:
                return {"ConditionCheck": self._conditional(self._named(Key=one), 1)}

    def _transactional_get(self) -> Call:
        gets = [{"Get": self._named(Key=one)} for one in self._keys(4)]
        return "TransactGetItems", {"TransactItems": gets}

    # Statements.

    def _statement(self) -> Call:
        write = self._written(self._key())
        if self.random.random() < 0.3:
            text = f'SELECT * FROM "{self.table}" WHERE pk = ? AND sk = ?'
            write = {"Statement": text, "Parameters": list(self._key().values())}
        write.pop("ReturnValuesOnConditionCheckFailure", None)
        return "ExecuteStatement", write

    def _statements(self) -> Call:
        statements = [self._written(one) for one in self._keys(4)]
        return "BatchExecuteStatement", {"Statements": statements}

    def _written(self, one: dict[str, Any]) -> dict[str, Any]:
        keys = list(one.values())
        match self.random.randrange(3):
            case 0:
                fields = one | self._fields()
                names = ", ".join(f"'{name}': ?" for name in fields)
                text = f'INSERT INTO "{self.table}" VALUE {{{names}}}'
                return {"Statement": text, "Parameters": list(fields.values())}
            case 1:
                clause, parameters = self._where()
                text = f'UPDATE "{self.table}" SET a = ? SET b = ? REMOVE c WHERE pk = ? AND sk = ?'
                values = [encode(self._any()), encode(self._any())]
                returned = self._one("", " RETURNING ALL NEW *", " RETURNING ALL OLD *")
                return self._shown(text + clause + returned, [*values, *keys, *parameters])
            case _:
                clause, parameters = self._where()
                text = f'DELETE FROM "{self.table}" WHERE pk = ? AND sk = ?{clause}'
                return self._shown(text + self._one("", " RETURNING ALL OLD *"), keys + parameters)

    def _shown(self, text: str, parameters: list[Any]) -> dict[str, Any]:
        statement = {"Statement": text, "Parameters": parameters}
        if self.random.random() < 0.5:
            statement["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return statement

    def _where(self) -> tuple[str, list[Any]]:
        clauses: list[tuple[str, list[Any]]] = [
            ("", []),
            (" AND a = ?", [encode(self._one("a", 1))]),
            (" AND d IS MISSING", []),
            (" AND e IS NOT MISSING", []),
            (" AND begins_with(g, ?)", [encode("g")]),
        ]
        return self.random.choice(clauses)
