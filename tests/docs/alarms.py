"""The alarms of docs/operations.md, and the rules of Prometheus that are made of them."""

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "conveyor.rules.yaml"
ROW = re.compile(r"^\| ([^|]+?) \| `(.+?)` \| (\d+[mh]) \| (page|ticket) \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


class Alarm(NamedTuple):
    name: str
    expression: str
    lasting: str
    kind: str
    remedy: str


def alarms() -> list[Alarm]:
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return [
        Alarm(name, expression.replace(r"\|", "|"), *rest)
        for name, expression, *rest in ROW.findall(guide)
    ]


def rules() -> str:
    """The file of rules. A JSON string is a YAML string."""
    head = "# Made of the table of alarms in docs/operations.md by `make reference`.\n"
    return head + "groups:\n  - name: conveyor\n    rules:\n" + "".join(map(_rule, alarms()))


def _rule(alarm: Alarm) -> str:
    name = "Conveyor" + "".join(word.capitalize() for word in alarm.name.split())
    remedy = LINK.sub(r"\1 (docs/\2)", alarm.remedy)  # as the guide is in docs
    return (
        f"      - alert: {name}\n"
        f"        expr: {json.dumps(alarm.expression)}\n"
        f"        for: {alarm.lasting}\n"
        f"        labels:\n          severity: {alarm.kind}\n"
        f"        annotations:\n          summary: {json.dumps(f'Conveyor: {alarm.name}')}\n"
        f"          description: {json.dumps(remedy)}\n"
    )
