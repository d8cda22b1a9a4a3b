"""Which engines fit together: a table of choices, and what is said about those that do not fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from conveyor.app import engines as engines_module
from conveyor.app.engine_rules import RULES, Rule
from conveyor.app.engines import check_engines
from conveyor.app.rows import CONTROL_QUEUE, METADATA, QUEUES, TASKS
from conveyor.errors import RefusedToStart
from conveyor.settings import Settings, without_secrets

FILES = {"bodies": "files:/srv/pages", "blobs": "files:/srv/lists"}
S3 = {"bodies": "s3://pages/a?region=b", "blobs": "s3://pages/a?region=b"}
REDIS = {"coordination": "redis://host:6379/0"}
ROWS = {"metadata": "rows:", "tasks": "rows:", "control_queue": "rows:"}
# Roles, settings, and the setting that is refused; None if the engines fit together.
TABLE: list[tuple[str, Mapping[str, str], str | None]] = [
    ("serve", {}, None),
    ("serve", REDIS, None),
    ("serve", S3, None),
    ("serve", FILES | REDIS, None),
    ("serve", {"bodies": "files:"}, None),
    ("serve", {"bodies": "files:?layout=segments"}, None),
    ("serve", ROWS | S3 | REDIS, None),
    ("serve", ROWS | FILES, None),
    ("serve", {"metadata": "rows:"} | S3, "tasks"),
    ("serve", {"tasks": "rows:"}, "metadata"),
    ("serve", {"control_queue": "rows:"}, "metadata"),
    ("serve", {"metadata": "rows:", "tasks": "rows:"} | S3, "control_queue"),
    ("serve", ROWS, "bodies"),
    ("serve", ROWS | {"bodies": "files:/srv/pages"}, "blobs"),
    ("serve", ROWS | FILES | {"bodies": "files:"}, "bodies"),
    ("serve", ROWS | FILES | {"bodies": "files:?layout=segments"}, "bodies"),
    ("serve", {"queues": "memory:"}, "queues"),
    ("serve", ROWS | S3 | {"tasks": "claims:"}, "queues"),
    ("serve", ROWS | S3 | {"tasks": "claims:", "queues": "memory:"}, None),
    ("serve", ROWS | S3 | {"control_queue": "memory:"}, None),
    ("serve", {"control_queue": "memory:"}, "metadata"),
    ("worker", ROWS | S3 | REDIS | {"control_queue": "memory:"}, "control_queue"),
    ("worker", {}, "metadata"),
    ("api", ROWS | S3 | REDIS, None),
    ("worker", ROWS | FILES | REDIS, None),
    ("worker", ROWS | FILES | REDIS | {"bodies": "files:/srv/pages?layout=segments"}, None),
    ("worker", ROWS | FILES | REDIS | {"bodies": "files:?layout=segments"}, "bodies"),
    ("worker", ROWS | S3, "coordination"),
    ("worker", ROWS | REDIS, "bodies"),
    ("api", ROWS | S3 | REDIS | {"blobs": "files:"}, "blobs"),
    ("worker", ROWS | S3 | REDIS | {"tasks": "claims:", "queues": "memory:"}, "queues"),
    ("worker", ROWS | S3 | REDIS | {"tasks": "claims:", "queues": "sent:"}, None),
]


@pytest.fixture(autouse=True)
def shared_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of rows and queues that several processes share; they are never opened here."""
    for schemes in (METADATA, TASKS, CONTROL_QUEUE):
        shared = replace(schemes["sqlite"], is_shared=True)
        monkeypatch.setitem(cast("Any", schemes), "rows", shared)
    claims = replace(TASKS["rows"], has_queue=False, takes_queues=True)
    monkeypatch.setitem(cast("Any", TASKS), "claims", claims)
    monkeypatch.setitem(cast("Any", QUEUES), "sent", replace(QUEUES["memory"], is_shared=True))


@pytest.mark.parametrize(("role", "given", "refused"), TABLE, ids=str)
def test_the_engines_of_a_start_fit_together(
    role: str, given: Mapping[str, str], refused: str | None
) -> None:
    settings = msgspec.structs.replace(Settings(), **given)
    sharing = "" if role == "serve" else role
    if refused is None:
        check_engines(settings, sharing=sharing)
        return
    with pytest.raises(RefusedToStart) as told:
        check_engines(settings, sharing=sharing)
    value = without_secrets(getattr(settings, refused))
    start, found, rest = str(told.value).partition(f", got {value!r}, ")
    assert found, told.value
    assert start.startswith(f"settings: {refused} must "), told.value
    assert ": " in rest, "what to do is missing"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.requirement)
def test_each_rule_is_broken_by_a_row_of_the_table(rule: Rule) -> None:
    assert any(
        rule.check(
            engines_module._chosen(msgspec.structs.replace(Settings(), **given)),
            "" if role == "serve" else role,
        )
        for role, given, _ in TABLE
    )


def test_an_engine_that_this_version_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(
        RefusedToStart, match=r"must be sqlite: .*got 'cassandra://conveyor'"
    ) as told:
        check_engines(Settings(metadata="cassandra://conveyor"))
    assert "this version has no engine cassandra:" in str(told.value)
