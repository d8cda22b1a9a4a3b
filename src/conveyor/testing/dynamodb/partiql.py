"""The PartiQL that AWS documents: INSERT, UPDATE, DELETE and SELECT of items by their keys.

Forms that other implementations accept but AWS does not document are refused: several assignments
in one SET, a whole item as a parameter, functions of update expressions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue
from conveyor.testing.dynamodb.expressions import UpdateActions, check_overlaps
from conveyor.testing.dynamodb.refusals import Refusal, invalid
from conveyor.testing.dynamodb.reserved_words import RESERVED
from conveyor.testing.dynamodb.syntax import (
    AllOf,
    Among,
    AnyOf,
    Arithmetic,
    Between,
    Comparison,
    Condition,
    FunctionTest,
    ListAppend,
    Literal,
    NotHolding,
    Operand,
    Path,
    SetChange,
    SizeOf,
)
from conveyor.testing.dynamodb.tokens import Tokens
from conveyor.testing.dynamodb.values import canonical

TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>\"[^\"]+\")|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><<|>>|<>|!=|<=|>=|[=<>+\-,.()\[\]{}:?*;]))"
)
LONGEST_STATEMENT = 8_192  # characters
COMPARISONS = {"=", "<>", "<", "<=", ">", ">="}
TESTS = {"begins_with", "contains", "attribute_type"}
RETURNING = {"ALL OLD *", "ALL NEW *", "MODIFIED OLD *", "MODIFIED NEW *"}


@dataclass(frozen=True, slots=True)
class InsertStatement:
    table: str
    item: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class UpdateStatement:
    table: str
    actions: UpdateActions
    where: Condition
    returning: str = ""


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    table: str
    where: Condition
    returning: str = ""


@dataclass(frozen=True, slots=True)
class SelectStatement:
    table: str
    index: str | None
    paths: Sequence[Path] | None  # None: all attributes
    where: Condition | None
    is_forward: bool = True


Statement = InsertStatement | UpdateStatement | DeleteStatement | SelectStatement


def parse_statement(text: str, parameters: Sequence[Any] | None) -> Statement:
    return _Parser(text, parameters or ()).statement()


@lru_cache(maxsize=64)
def _split(text: str) -> Sequence[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise _malformed(text[at : at + 10])
        assert found.lastgroup is not None
        tokens.append((found.lastgroup, found[found.lastgroup]))
        at = found.end()
    return tokens


class _Parser(Tokens):
    def __init__(self, text: str, parameters: Sequence[Any]) -> None:
        if not text.strip() or len(text) > LONGEST_STATEMENT:
            raise invalid(f"Statement must have 1 to {LONGEST_STATEMENT} characters")
        super().__init__(_split(text.strip()))
        self._parameters = [canonical(value) for value in parameters]
        if self._tokens.count(("sign", "?")) != len(self._parameters):
            raise invalid("Number of parameters in request and statement don't match.")
        self._used = 0

    # Tokens.

    def _expect(self, sign: str) -> None:
        if not self.take(sign):
            raise _malformed(self.peek()[1])

    def _word(self, *words: str) -> bool:
        """Take these words, if they follow."""
        for n, word in enumerate(words):
            kind, text = self.peek(n)
            if kind != "word" or text.upper() != word:
                return False
        self._at += len(words)
        return True

    def _expect_word(self, *words: str) -> None:
        if not self._word(*words):
            raise _malformed(self.peek()[1])

    # Statements.

    def statement(self) -> Statement:
        if self._word("INSERT", "INTO"):
            parsed: Statement = self._insert()
        elif self._word("UPDATE"):
            parsed = self._update()
        elif self._word("DELETE", "FROM"):
            table = self._name()
            self._expect_word("WHERE")
            parsed = DeleteStatement(table, self._condition(), self._returning({"ALL OLD *"}))
        elif self._word("SELECT"):
            parsed = self._select()
        else:
            raise _malformed(self.peek()[1])
        self.take(";")
        if self.peek()[0] != "end":
            raise _malformed(self.peek()[1])
        return parsed

    def _insert(self) -> InsertStatement:
        table = self._name()
        self._expect_word("VALUE")
        if self.peek() != ("sign", "{"):
            raise _malformed(self.peek()[1])
        return InsertStatement(table, self._literal()["M"])

    def _update(self) -> UpdateStatement:
        table = self._name()
        assigned: list[tuple[Path, Operand]] = []
        removed: list[Path] = []
        while True:
            if self._word("SET"):
                path = self._path()
                self._expect("=")
                assigned.append((path, self._sum()))
            elif self._word("REMOVE"):
                removed.append(self._path())
            else:
                break
        if not (assigned or removed):
            raise _malformed(self.peek()[1])
        actions = UpdateActions(set=tuple(assigned), remove=tuple(removed))
        check_overlaps(actions.paths, "UpdateExpression")
        self._expect_word("WHERE")
        return UpdateStatement(table, actions, self._condition(), self._returning(RETURNING))

    def _returning(self, allowed: set[str]) -> str:
        if not self._word("RETURNING"):
            return ""
        wanted = " ".join(self.next()[1].upper() for _ in range(3))
        if wanted not in allowed:
            raise invalid(f"Invalid returning clause: RETURNING {wanted}")
        return wanted

    def _select(self) -> SelectStatement:
        paths: list[Path] | None = None
        if not self.take("*"):
            paths = [self._path()]
            while self.take(","):
                paths.append(self._path())
        self._expect_word("FROM")
        table, index = self._name(), None
        if self.take("."):
            index = self._name()
        where = self._condition() if self._word("WHERE") else None
        is_forward = True
        if self._word("ORDER", "BY"):
            self._path()
            is_forward = not self._word("DESC")
            self._word("ASC")
        return SelectStatement(table, index, paths, where, is_forward)

    # Conditions.

    def _condition(self) -> Condition:
        parts = [self._conjunction()]
        while self._word("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else AnyOf(parts)

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self._word("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else AllOf(parts)

    def _negation(self) -> Condition:
        if self._word("NOT"):
            return NotHolding(self._negation())
        if self.take("("):
            condition = self._condition()
            self._expect(")")
            return condition
        return self._test()

    def _test(self) -> Condition:
        kind, text = self.peek()
        if kind == "word" and text.lower() in TESTS and self.peek(1) == ("sign", "("):
            self.next()
            self._expect("(")
            path = self._path()
            self._expect(",")
            argument = self._sum()
            self._expect(")")
            return FunctionTest(text.lower(), path, argument)
        operand = self._sum()
        if self._word("IS"):
            return self._is(operand)
        if self._word("BETWEEN"):
            low = self._sum()
            self._expect_word("AND")
            return Between(operand, low, self._sum())
        if self._word("IN"):
            return self._among(operand)
        kind, sign = self.next()
        if kind != "sign" or sign not in {*COMPARISONS, "!="}:
            raise _malformed(sign)
        return Comparison("<>" if sign == "!=" else sign, operand, self._sum())

    def _is(self, operand: Operand) -> Condition:
        is_negated = self._word("NOT")
        if self._word("MISSING"):
            name = "attribute_exists" if is_negated else "attribute_not_exists"
            return FunctionTest(name, operand)
        self._expect_word("NULL")
        is_null = Comparison("=", operand, Literal({"NULL": True}))
        return NotHolding(is_null) if is_negated else is_null

    def _among(self, operand: Operand) -> Among:
        end = {"(": ")", "[": "]"}.get(self.next()[1])
        if end is None:
            raise _malformed(self.peek()[1])
        choices = [self._sum()]
        while self.take(","):
            choices.append(self._sum())
        self._expect(end)
        return Among(operand, choices)

    # Operands.

    def _sum(self) -> Operand:
        left = self._operand()
        for sign, factor in (("+", 1), ("-", -1)):
            if self.take(sign):
                return Arithmetic(factor, left, self._operand())
        return left

    def _operand(self) -> Operand:
        kind, text = self.peek()
        if kind == "word" and self.peek(1) == ("sign", "("):
            return self._function(text.lower())
        if kind == "quoted" or (kind == "word" and text.upper() not in {"TRUE", "FALSE", "NULL"}):
            return self._path()
        return Literal(self._literal())

    def _function(self, name: str) -> Operand:
        self.next()
        self._expect("(")
        if name == "size":
            operand: Operand = SizeOf(self._path())
        elif name == "list_append":
            first = self._operand()
            self._expect(",")
            operand = ListAppend(first, self._operand())
        elif name in {"set_add", "set_delete"}:
            path = self._path()
            self._expect(",")
            operand = SetChange(name, path, self._operand())
        else:
            raise invalid(f"Unsupported function: {name}")
        self._expect(")")
        return operand

    def _path(self) -> Path:
        parts: list[str | int] = [self._name()]
        while True:
            if self.take("."):
                parts.append(self._name())
            elif self.take("["):
                kind, text = self.next()
                if kind != "number":
                    raise _malformed(text)
                parts.append(int(text))
                self._expect("]")
            else:
                return Path(tuple(parts))

    def _name(self) -> str:
        kind, text = self.next()
        if kind == "quoted":
            return text[1:-1]
        if kind != "word" or text.upper() in RESERVED:
            raise _malformed(text)
        return text

    # Values.

    def _literal(self) -> AttributeValue:
        kind, text = self.next()
        match kind, text:
            case "text", _:
                return {"S": text[1:-1].replace("''", "'")}
            case "number", _:
                return canonical({"N": text})
            case "sign", "-":
                return canonical({"N": f"-{self.next()[1]}"})
            case "sign", "?":
                self._used += 1
                return self._parameters[self._used - 1]
            case "word", _ if text.upper() in {"TRUE", "FALSE"}:
                return {"BOOL": text.upper() == "TRUE"}
            case "word", _ if text.upper() == "NULL":
                return {"NULL": True}
            case "sign", "[":
                return {"L": self._elements("]")}
            case "sign", "<<":
                return self._set()
            case "sign", "{":
                return self._map()
            case _:
                raise _malformed(text)

    def _elements(self, end: str) -> list[AttributeValue]:
        elements: list[AttributeValue] = []
        while not self.take(end):
            if elements:
                self._expect(",")
            elements.append(self._literal())
        return elements

    def _set(self) -> AttributeValue:
        elements = self._elements(">>")
        kinds = {kind for element in elements for kind in element}
        if len(kinds) != 1 or not kinds <= {"S", "N", "B"}:
            raise invalid("A set must have elements, all of one scalar type")
        [kind] = kinds
        return canonical({f"{kind}S": [element[kind] for element in elements]})

    def _map(self) -> AttributeValue:
        fields: dict[str, AttributeValue] = {}
        while not self.take("}"):
            if fields:
                self._expect(",")
            kind, text = self.next()
            if kind != "text":
                raise _malformed(text)
            self._expect(":")
            fields[text[1:-1].replace("''", "'")] = self._literal()
        return {"M": fields}


def _malformed(near: str) -> Refusal:
    return invalid(
        f"Statement wasn't well formed, can't be processed: Unexpected token near {near!r}"
    )
