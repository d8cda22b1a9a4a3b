"""Condition, key, filter, projection and update expressions, with their placeholders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conveyor.adapters.aws.item_size import AttributeValue
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
    IfNotExists,
    ListAppend,
    Literal,
    NotHolding,
    Operand,
    Path,
    SizeOf,
)
from conveyor.testing.dynamodb.tokens import Tokens
from conveyor.testing.dynamodb.values import TYPES, canonical, kind_of

LONGEST = 4096  # bytes
TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<alias>#[A-Za-z0-9_]+)|(?P<value>:[A-Za-z0-9_]+)"
    r"|(?P<number>\d+)|(?P<sign><>|<=|>=|[=<>+\-,.()\[\]]))"
)
COMPARISONS = {"=", "<>", "<", "<=", ">", ">="}
TESTS = {"attribute_exists": 1, "attribute_not_exists": 1, "attribute_type": 2, "begins_with": 2, "contains": 2}  # fmt: skip
CLAUSES = {"SET", "REMOVE", "ADD", "DELETE"}


@dataclass(slots=True)
class Placeholders:
    """`ExpressionAttributeNames` and `ExpressionAttributeValues` of one request."""

    names: Mapping[str, str]
    values: Mapping[str, AttributeValue]
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "Placeholders":
        names, values = (request.get(f"ExpressionAttribute{of}") for of in ("Names", "Values"))
        for given, what in ((names, "Names"), (values, "Values")):
            if given is not None and not given:
                raise invalid(f"ExpressionAttribute{what} must not be empty")
        return cls(names or {}, {key: canonical(value) for key, value in (values or {}).items()})

    def check_used(self) -> None:
        for given, what in ((self.names, "Names"), (self.values, "Values")):
            if unused := sorted(given.keys() - self.used):
                raise invalid(
                    f"Value provided in ExpressionAttribute{what} unused in expressions: "
                    f"keys: {{{', '.join(unused)}}}"
                )


@dataclass(frozen=True, slots=True)
class UpdateActions:
    """What an update does, in the order of its clauses."""

    set: tuple[tuple[Path, Operand], ...] = ()
    remove: tuple[Path, ...] = ()
    add: tuple[tuple[Path, AttributeValue], ...] = ()
    delete: tuple[tuple[Path, AttributeValue], ...] = ()

    @property
    def paths(self) -> list[Path]:
        changed = [path for path, _ in (*self.set, *self.add, *self.delete)]
        return [*changed, *self.remove]


def parse_condition(
    text: str, placeholders: Placeholders, what: str = "ConditionExpression"
) -> Condition:
    parser = _Parser(text, placeholders, what)
    condition = parser.condition()
    parser.end()
    return condition


def parse_projection(text: str, placeholders: Placeholders) -> list[Path]:
    parser = _Parser(text, placeholders, "ProjectionExpression")
    paths = [parser.path()]
    while parser.take(","):
        paths.append(parser.path())
    parser.end()
    check_overlaps(paths, "ProjectionExpression")
    return paths


def parse_update(text: str, placeholders: Placeholders) -> UpdateActions:
    parser = _Parser(text, placeholders, "UpdateExpression")
    actions = parser.update()
    check_overlaps(actions.paths, "UpdateExpression")
    return actions


def check_overlaps(paths: list[Path], what: str) -> None:
    for n, one in enumerate(paths):
        for other in paths[n + 1 :]:
            length = min(len(one.parts), len(other.parts))
            if one.parts[:length] == other.parts[:length]:
                raise invalid(
                    f"Invalid {what}: Two document paths overlap with each other; must remove or "
                    f"rewrite one of these paths; path one: {one}, path two: {other}"
                )


class _Parser(Tokens):
    """By recursive descent."""

    def __init__(self, text: str, placeholders: Placeholders, what: str) -> None:
        self._placeholders, self._what = placeholders, what
        if not text.strip():
            raise self.refusal("The expression can not be empty;")
        if len(text.encode()) > LONGEST:
            raise self.refusal("Expression size has exceeded the maximum allowed size;")
        super().__init__(self._split(text), end="<EOF>")

    def refusal(self, why: str) -> Refusal:
        return invalid(f"Invalid {self._what}: {why}")

    def _split(self, text: str) -> list[tuple[str, str]]:
        tokens, at, text = [], 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise self.refusal(f'Syntax error; token: "{text[at:].strip()[:1]}"')
            assert found.lastgroup is not None
            tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        return tokens

    # Tokens.

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.unexpected()

    def keyword(self, word: str) -> bool:
        kind, text = self.peek()
        return kind == "name" and text.upper() == word

    def take_keyword(self, word: str) -> bool:
        if self.keyword(word):
            self._at += 1
            return True
        return False

    def unexpected(self) -> Refusal:
        return self.refusal(f'Syntax error; token: "{self.peek()[1]}"')

    def end(self) -> None:
        if self.peek()[0] != "end":
            raise self.unexpected()

    # Conditions.

    def condition(self) -> Condition:
        parts = [self._conjunction()]
        while self.take_keyword("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else AnyOf(parts)

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self.take_keyword("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else AllOf(parts)

    def _negation(self) -> Condition:
        if self.take_keyword("NOT"):
            return NotHolding(self._negation())
        if self.take("("):
            if self.peek() == ("sign", "(") and self._closes_twice():
                raise self.refusal("The expression has redundant parentheses;")
            condition = self.condition()
            self.expect(")")
            return condition
        return self._test()

    def _closes_twice(self) -> bool:
        """Whether the parenthesis at hand ends directly before the one that contains it."""
        depth = 0
        for n, token in enumerate(self._tokens[self._at :], self._at):
            depth += (token == ("sign", "(")) - (token == ("sign", ")"))
            if depth == 0:
                return list(self._tokens[n + 1 : n + 2]) == [("sign", ")")]
        return False

    def _test(self) -> Condition:
        kind, name = self.peek()
        if kind == "name" and name in TESTS and self.peek(1) == ("sign", "("):
            return self._function_test(name)
        operand = self._comparable()
        kind, sign = self.peek()
        if kind == "sign" and sign in COMPARISONS:
            self.next()
            return self._checked(Comparison(sign, operand, self._comparable()))
        if self.take_keyword("BETWEEN"):
            low = self._comparable()
            if not self.take_keyword("AND"):
                raise self.unexpected()
            return self._ordered(Between(operand, low, self._comparable()))
        if self.take_keyword("IN"):
            self.expect("(")
            choices = [self._comparable()]
            while self.take(","):
                choices.append(self._comparable())
            self.expect(")")
            return Among(operand, choices)
        raise self.unexpected()

    def _checked(self, comparison: Comparison) -> Comparison:
        if comparison.operator not in {"=", "<>"}:
            for operand in (comparison.left, comparison.right):
                self._check_ordered(comparison.operator, operand)
        return comparison

    def _ordered(self, between: Between) -> Between:
        for operand in (between.operand, between.low, between.high):
            self._check_ordered("BETWEEN", operand)
        bounds = [one.value for one in (between.low, between.high) if isinstance(one, Literal)]
        if len({kind_of(bound) for bound in bounds}) > 1:
            raise self.refusal("The BETWEEN operator requires same data type for both bounds;")
        return between

    def _check_ordered(self, operator: str, operand: Operand) -> None:
        if isinstance(operand, Literal) and kind_of(operand.value) not in {"S", "N", "B"}:
            raise self.refusal(
                f"Incorrect operand type for operator or function; operator: {operator}, "
                f"operand type: {kind_of(operand.value)}"
            )

    def _function_test(self, name: str) -> FunctionTest:
        self.next()
        self.expect("(")
        path: Operand = self._comparable()
        if not isinstance(path, Path) and name not in {"begins_with", "contains"}:
            raise self.refusal(
                f"Operator or function requires a document path; operator or function: {name}"
            )
        argument = None
        if TESTS[name] == 2:
            self.expect(",")
            argument = self._comparable()
            self._check_argument(name, argument)
        self.expect(")")
        return FunctionTest(name, path, argument)

    def _check_argument(self, name: str, argument: Operand) -> None:
        if not isinstance(argument, Literal):
            return
        kind = kind_of(argument.value)
        if name == "begins_with" and kind not in {"S", "B"}:
            raise self.refusal(
                "Incorrect operand type for operator or function; operator or function: "
                f"begins_with, operand type: {kind}"
            )
        if name == "attribute_type" and argument.value.get("S") not in TYPES:
            raise self.refusal("Invalid attribute type name found;")

    def _comparable(self) -> Operand:
        if self.peek() == ("name", "size") and self.peek(1) == ("sign", "("):
            self.next()
            self.expect("(")
            path = self.path()
            self.expect(")")
            return SizeOf(path)
        return self._path_or_value()

    def _path_or_value(self) -> Path | Literal:
        kind, text = self.peek()
        if kind == "value":
            self.next()
            return Literal(self._value(text))
        return self.path()

    def _value(self, name: str) -> AttributeValue:
        if name not in self._placeholders.values:
            raise self.refusal(
                "An expression attribute value used in expression is not defined; attribute "
                f"value: {name}"
            )
        self._placeholders.used.add(name)
        return self._placeholders.values[name]

    # Paths.

    def path(self) -> Path:
        parts: list[str | int] = [self._name()]
        while True:
            if self.take("."):
                parts.append(self._name())
            elif self.take("["):
                kind, text = self.next()
                if kind != "number":
                    raise self.unexpected()
                parts.append(int(text))
                self.expect("]")
            else:
                return Path(tuple(parts))

    def _name(self) -> str:
        kind, text = self.peek()
        if kind == "alias":
            self.next()
            if text not in self._placeholders.names:
                raise self.refusal(
                    "An expression attribute name used in the document path is not defined; "
                    f"attribute name: {text}"
                )
            self._placeholders.used.add(text)
            return self._placeholders.names[text]
        if kind != "name":
            raise self.unexpected()
        if text.upper() in RESERVED:
            raise self.refusal(f"Attribute name is a reserved keyword; reserved keyword: {text}")
        self.next()
        return text

    # Updates.

    def update(self) -> UpdateActions:
        found: dict[str, Any] = {}
        while self.peek()[0] != "end":
            kind, text = self.next()
            clause = text.upper()
            if kind != "name" or clause not in CLAUSES:
                self._at -= 1
                raise self.unexpected()
            if clause in found:
                raise self.refusal(
                    f'The "{clause}" section can only be used once in an update expression;'
                )
            actions = [self._action(clause)]
            while self.take(","):
                actions.append(self._action(clause))
            found[clause] = tuple(actions)
        return UpdateActions(**{clause.lower(): actions for clause, actions in found.items()})

    def _action(self, clause: str) -> object:
        path = self.path()
        if clause == "REMOVE":
            return path
        if clause == "SET":
            self.expect("=")
            return path, self._sum()
        kind, text = self.next()
        if kind != "value":
            self._at -= 1
            raise self.unexpected()
        value = self._value(text)
        self._check_change(clause, kind_of(value))
        return path, value

    def _check_change(self, clause: str, kind: str) -> None:
        allowed = {"SS", "NS", "BS"} | ({"N"} if clause == "ADD" else set())
        if kind not in allowed:
            raise self.refusal(
                "Incorrect operand type for operator or function; operator: "
                f"{clause}, operand type: {kind}"
            )

    def _sum(self) -> Operand:
        left = self._update_operand()
        for sign, factor in (("+", 1), ("-", -1)):
            if self.take(sign):
                right = self._update_operand()
                for operand in (left, right):
                    if isinstance(operand, Literal) and "N" not in operand.value:
                        raise self.refusal(
                            "Incorrect operand type for operator or function; operator or "
                            f"function: {sign}, operand type: {kind_of(operand.value)}"
                        )
                return Arithmetic(factor, left, right)
        return left

    def _update_operand(self) -> Operand:
        kind, name = self.peek()
        if kind == "name" and self.peek(1) == ("sign", "("):
            self.next()
            self.expect("(")
            if name == "if_not_exists":
                path = self.path()
                self.expect(",")
                operand: Operand = IfNotExists(path, self._update_operand())
            elif name == "list_append":
                first = self._update_operand()
                self.expect(",")
                operand = ListAppend(first, self._update_operand())
            else:
                raise self.refusal(f"Invalid function name; function: {name}")
            self.expect(")")
            return operand
        return self._path_or_value()
