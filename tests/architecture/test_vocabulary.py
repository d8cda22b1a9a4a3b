"""Names are words that an engineer of queues, SQL, HTTP and AWS knows, and each has one meaning.

The first version had words of its own. They may not come back.
"""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import conveyor

SOURCE = Path(conveyor.__file__).parent
PROJECT = SOURCE.parent.parent
MIGRATIONS = SOURCE / "adapters" / "sqlite" / "migrations"

# As part of a name of a module, class, function, table, column, metric, log event, setting or
# command: the word, and what is said instead.
RETIRED = {
    "appetite": "demand",
    "attend": "control worker",
    "beat": "heartbeat",
    "bite": "chunk",
    "buried": "dead-lettered",
    "bury": "dead-letter",
    "carried": "delivery result",
    "census": "usage",
    "courier": "webhook sender",
    "desk": "admin",
    "doctoring": "doctor",
    "duties": "control queue",
    "duty": "control message",
    "flight": "task in flight",
    "flights": "tasks in flight",
    "grave": "dead letter",
    "graves": "dead letters",
    "landed": "finished",
    "lane": "active run",
    "lanes": "active runs",
    "mend": "stalled",
    "mishap": "fault",
    "morsel": "chunk",
    "offer": "enqueue",
    "owing": "outbox",
    "packs": "segments",
    "parcel": "webhook request",
    "pinned": "source list",
    "piece": "chunk",
    "portion": "chunk",
    "pump": "dispatcher",
    "recognize": "authenticate",
    "reseal": "rotate encryption",
    "revive": "redrive",
    "roster": "discovery",
    "ruling": "rule",
    "scrub": "purge",
    "scrubs": "deletions",
    "seal": "encrypt",
    "sealed": "encrypted",
    "sealing": "encryption",
    "shelf": "run_no",
    "shelves": "run numbers",
    "slot": "file input",
    "slots": "file inputs",
    "survey": "admin reads",
    "telling": "output",
    "timetable": "due schedules",
    "vault": "key provider",
    "verdict": "settle decision",
    "vitals": "process metrics",
}
# Standard words that contain a retired one: tasks in flight, the slots of a worker; and a field of
# key files that 0.1.0 wrote.
STANDARD = re.compile(r"in_?flight|_?slots|(?:Control|Host)Slots|SlotLimits", re.IGNORECASE)
OF_0_1_0 = {"sealing"}
# Nowhere at all, prose included.
INVENTED = (
    "appetite", "census", "courier", "couriers", "duties", "grave", "graves", "lanes", "mishap",
    "mishaps", "morsel", "morsels", "owing", "parcel", "parcels", "roster", "scrub", "scrubs",
    "shelf", "timetable", "vitals",
)  # fmt: skip
TEXTS = ("*.py", "*.md", "*.sql", "*.toml", "Makefile")
# What tells of 0.1.0: its migrations, and tests with its rows.
EXCEPT = (
    "migrations/", "tests/upgrade/", "sqlite/test_database.py", "CHANGELOG.md",
    Path(__file__).name,
)  # fmt: skip

WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
METRIC = re.compile(r"conveyor_[a-z_]+")
LOG_LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def test_no_retired_word_is_part_of_a_name() -> None:
    offences = sorted(
        f"{kind} {name} ({where}): say {RETIRED[word]}"
        for kind, name, where in _names()
        if name not in OF_0_1_0
        for word in {one.lower() for one in WORDS.findall(STANDARD.sub("", name))} & RETIRED.keys()
    )
    assert offences == []


def test_no_public_class_name_exists_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_domain_module_has_one_name_wherever_it_is_imported() -> None:
    """Its own, or `run_rules` where `run` names a value."""
    offences = [
        f"{path.relative_to(PROJECT)}: {found.name} as {found.asname}"
        for folder in (SOURCE, PROJECT / "tests", PROJECT / "benchmarks")
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "conveyor.domain"
        for found in node.names
        if found.asname not in {None, f"{found.name}_rules"}
    ]
    assert offences == []


def test_invented_words_are_used_nowhere() -> None:
    word = re.compile(rf"\b(?:{'|'.join(INVENTED)})\b", re.IGNORECASE)
    offences = [
        f"{name}:{number}: {line.strip()}"
        for name in _texts(PROJECT)
        if not any(part in name for part in EXCEPT)
        for number, line in enumerate((PROJECT / name).read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert offences == []


def test_texts_are_found_without_git_and_without_what_it_ignores(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text(".venv\n__pycache__/\n/data/\n")
    for name in (".venv/a.py", ".git/b.md", "data/c.md", "src/data/d.py", "src/e.txt", "Makefile"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set(_texts(tmp_path)) == {"src/data/d.py", "Makefile"}


def _texts(project: Path) -> Iterator[str]:
    """The texts that .gitignore does not name; an archive of the project has no repository."""
    patterns = [".git", *(project / ".gitignore").read_text().split()]

    def is_ignored(path: Path) -> bool:
        rooted = f"/{path.relative_to(project)}"
        return any(
            fnmatch(rooted if one.startswith("/") else path.name, one.rstrip("/"))
            for one in patterns
        )

    for parent, folders, names in os.walk(project):
        folders[:] = [name for name in folders if not is_ignored(Path(parent, name))]
        for name in names:
            path = Path(parent, name)
            if any(fnmatch(name, one) for one in TEXTS) and not is_ignored(path):
                yield str(path.relative_to(project))


def _names() -> Iterator[tuple[str, str, str]]:
    """Each name, with its kind and where it is defined."""
    for path in SOURCE.rglob("*.py"):
        where = str(path.relative_to(SOURCE))
        yield "module", path.stem if path.stem != "__init__" else path.parent.name, where
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            yield from ((kind, name, where) for kind, name in _names_of(node))
    for line in (SOURCE / "adapters" / "sqlite" / "schema.sql").read_text().splitlines():
        if found := re.match(r"(?:CREATE (?:UNIQUE )?(?:TABLE|INDEX) |    )([a-z_]+)\b", line):
            yield "table or column", found[1], "schema.sql"


def _names_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.ClassDef(name=name):
            yield "class", name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield "function", name
        case ast.AnnAssign(target=ast.Name(id=name)):  # fields: settings, columns of documents
            yield "field", name
        case ast.Call(
            func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_]
        ) if level in LOG_LEVELS:
            yield "log event", event
        case ast.Constant(value=str(text)) if METRIC.fullmatch(text):
            yield "metric", text
        case ast.Call(
            func=ast.Attribute(attr="command"), args=[ast.Constant(value=str(command)), *_]
        ):
            yield "command", command
