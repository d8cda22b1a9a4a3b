"""The documents say what is so: tables against the code, snippets and links against the tree."""

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import apsw
import pytest
import typer
from prometheus_client.metrics import MetricWrapperBase

from conveyor.api.routes import ROUTES
from conveyor.cli import serve as cli
from conveyor.cli.main import build_app
from conveyor.domain.media import TYPES_OF_FORMATS
from conveyor.domain.page_codes import PAGE_CODES
from conveyor.telemetry.metrics import SWEEPER_ACTIONS, Metrics
from tests.docs import reference
from tests.docs.chapters import NONE, OPERATIONS, SQLITE, TELEMETRY, tables

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "conveyor"
NOT_OURS = {
    ".git", ".venv", ".venv-docs", ".venv-emulators", ".venv-peers", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache", "__pycache__",
    "build", "data", "demo", "dist",
}  # fmt: skip


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project, and nothing that tools left."""
    return tuple(sorted(_below(ROOT)))


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in NOT_OURS or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from _below(path)
        else:
            yield path


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PAGES = [path for path in files() if path.suffix == ".md"]
every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
README = text_of(ROOT / "README.md")


# SPEC 12 to 17 and their chapters against the code.


def test_the_sweepers_actions_are_those_that_are_counted() -> None:
    [table] = tables("12 Sweeper")
    assert {row["action"] for row in table} == set(SWEEPER_ACTIONS)


@pytest.fixture(scope="module")
def schema() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(text_of(SOURCE / "adapters" / "sqlite" / "schema.sql"))
    return connection


def test_the_tables_and_columns_are_those_of_the_schema(schema: apsw.Connection) -> None:
    [table] = tables("Tables", SQLITE)
    listed = [(row["table"], row["column"], row["type"]) for row in table]
    assert listed == list(_columns(schema))


def _columns(schema: apsw.Connection) -> Iterator[tuple[str, str, str]]:
    script = text_of(SOURCE / "adapters" / "sqlite" / "schema.sql")
    for table in re.findall(r"^CREATE TABLE (\w+)", script, re.MULTILINE):
        for _, column, kind, not_null, _, in_key in schema.execute(f"PRAGMA table_info({table})"):
            yield table, column, kind if not_null or in_key else f"{kind} or null"


def test_the_indexes_are_those_of_the_schema(schema: apsw.Connection) -> None:
    [table] = tables("Indexes", SQLITE)
    listed = {(row["index"], row["table"], row["columns"], row["only where"]) for row in table}
    found = schema.execute(
        "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    )
    assert listed == {(name, of, *_index_parts(sql)) for name, of, sql in found}


def _index_parts(sql: str) -> tuple[str, str]:
    flat = " ".join(sql.split())
    parts = re.fullmatch(r"CREATE (?:UNIQUE )?INDEX \w+ ON \w+ \((.*?)\)(?: WHERE (.*))?", flat)
    assert parts
    return parts[1], parts[2] or NONE


def test_the_paths_are_the_routes() -> None:
    table = tables("14.1 Paths")[0]
    listed = [(row["method"], row["path"], row["statuses"], row["repeatable"]) for row in table]
    assert listed == [
        (
            route.method,
            route.path,
            ", ".join(map(str, route.statuses)),
            "yes" if route.repeatable else "no",
        )
        for route in ROUTES
    ]


def test_the_content_types_are_those_that_are_sent() -> None:
    types = tables("14.6 Content")[0]
    assert {row["format"]: row["Content-Type"] for row in types} == TYPES_OF_FORMATS


def test_every_code_of_a_page_says_what_to_do() -> None:
    assert PAGE_CODES.keys() == reference.page_rules().keys()
    assert all(text.endswith(".") for code in PAGE_CODES.values() for text in code)


def test_the_reference_is_what_the_code_says() -> None:
    written = {page.name: text_of(page) for page in reference.FOLDER.glob("*.md")}
    assert written == reference.pages(), "run `make reference`"


def test_the_metrics_are_those_that_are_exposed() -> None:
    [table] = tables("Metrics", TELEMETRY)
    listed = {(row["metric"], row["kind"], row["labels"]) for row in table}
    assert len(listed) == len(table)
    assert listed == {
        (_exposed(metric), metric._type, ", ".join(metric._labelnames) or NONE)
        for metric in vars(Metrics()).values()
        if isinstance(metric, MetricWrapperBase)
    }


@pytest.mark.parametrize("metric", ["conveyor_cleared_total", "conveyor_schedule_fires_total"])
def test_the_label_values_that_are_listed_start_at_zero(metric: str) -> None:
    [table] = tables("Metrics", TELEMETRY)
    [row] = [row for row in table if row["metric"] == metric]
    started = {
        sample.labels[row["labels"]]: sample.value
        for family in Metrics().registry.collect()
        for sample in family.samples
        if sample.name == metric
    }
    listed = row["meaning"].rpartition(": ")[2].split(", ")
    assert started == dict.fromkeys(listed, 0.0)


def _exposed(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


def test_the_log_events_are_those_that_are_written() -> None:
    [table] = tables("Log", TELEMETRY)
    listed = {(row["event"], row["level"]) for row in table}
    assert len(listed) == len(table)
    assert listed == {event for path in SOURCE.rglob("*.py") for event in _events(path)}


def _events(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text_of(path))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr=level),
                args=[ast.Constant(value=str(event)), *_],
            ):
                yield event, "error" if level == "exception" else level


def test_the_doctors_codes_are_in_the_code_and_its_paths_are_served() -> None:
    [codes] = tables("The doctor", OPERATIONS)
    [paths] = tables("17.3 The operator interface")
    text = "".join(
        text_of(SOURCE / name)
        for name in ("domain/audit.py", "steps/doctor/audit.py", "steps/doctor/doctor.py")
    )
    assert all(f'"{row["code"]}"' in text for row in codes)
    served = text_of(SOURCE / "api" / "handlers" / "admin.py")
    assert [
        row["path"] for row in paths if f'"{row["path"].removeprefix("/operator")}"' not in served
    ] == []


# What a reader is told to run.

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(text_of(page)) if kind == language]


@every_page
def test_python_snippets_compile(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, name_of(page), "exec")


@every_page
def test_shell_snippets_are_well_formed(page: Path) -> None:
    for code in blocks(page, "sh"):
        subprocess.run(["bash", "-n"], input=code, text=True, check=True)


def told_to_run(page: Path, program: str) -> set[str]:
    """The first words after a program's name, in shell snippets and in code between backticks."""
    inline = re.findall(rf"`(?:\S*/)?{program} ([a-z][a-z-]*)", text_of(page))
    shell = "\n".join(blocks(page, "sh"))
    return {*inline, *re.findall(rf"^(?:\S*/)?{program} ([a-z][a-z-]*)", shell, re.MULTILINE)}


@every_page
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE)
    assert told_to_run(page, "make") <= set(targets)


@every_page
def test_every_command_that_is_named_exists(page: Path) -> None:
    group = typer.main.get_command(build_app())
    commands: dict[str, object] = getattr(group, "commands", {})
    assert told_to_run(page, "conveyor") <= commands.keys()


@every_page
def test_units_of_systemd_pass_flags_that_exist(page: Path) -> None:
    for command, flags in re.findall(r"^ExecStart=\S+ (\w+)(.*)$", text_of(page), re.MULTILINE):
        known = inspect.signature(getattr(cli, command)).parameters
        given = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", flags)}
        assert given <= known.keys()


def test_no_entry_of_the_changelog_stands_twice() -> None:
    entries = re.findall(
        r"^- (.{50})", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [entry for entry in entries if entries.count(entry) > 1] == []


def test_the_readme_tells_of_the_two_commands() -> None:
    assert {"demo", "test", "dev"} <= told_to_run(ROOT / "README.md", "make")


# The tree.

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", text_of(page))):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{name_of(page)} links to {link}"


IMAGE = re.compile(r"!\[[^\]\n]+\]\(([^)\s]+)\)")
MOST_BYTES = 200_000  # of a picture


def test_every_picture_is_shown_by_a_page_and_is_small() -> None:
    shown = {
        (page.parent / image).resolve() for page in PAGES for image in IMAGE.findall(text_of(page))
    }
    pictures = {path for path in files() if path.parent.name == "images"}
    assert {path for path in shown if path.parent.name == "images"} == pictures
    assert [path.name for path in pictures if path.stat().st_size > MOST_BYTES] == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@every_page
def test_every_file_of_ours_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|sql|md|toml|txt))`", text_of(page)))
    known = {name_of(path) for path in files()}
    inside = {name.removeprefix("src/conveyor/") for name in known}
    bare = {name.rpartition("/")[2] for name in known}
    assert named <= known | inside | bare


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    elsewhere = re.compile(rb"(?<![\w.*})>-])/(?:work|root|home|Users)(?=[/\s\"'`,;:)]|$)")
    at_fault = [
        f"{name_of(path)}: {line[:100]!r}"
        for path in files()
        for line in path.read_bytes().splitlines()
        if elsewhere.search(line)
    ]
    assert not at_fault


DECISIONS = [path for path in PAGES if path.parent.name == "decisions"]
every_decision = pytest.mark.parametrize("page", DECISIONS, ids=name_of)


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [page.name[:4] for page in DECISIONS]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]


@every_decision
def test_a_decision_has_its_number_its_parts_and_its_line_in_the_index(page: Path) -> None:
    text = text_of(page)
    assert text.startswith(f"# {page.name[:4]} ")
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequences", "Figures"]
    title = text.splitlines()[0].removeprefix(f"# {page.name[:4]} ")
    line = f"| [{page.name[:4]}](decisions/{page.name}) | {title} |"
    assert line in text_of(ROOT / "docs" / "README.md").splitlines()


def test_every_page_is_found_from_the_index_or_the_readme() -> None:
    linked = {
        (start.parent / link.partition("#")[0]).resolve()
        for start in (ROOT / "README.md", ROOT / "docs" / "README.md")
        for link in LINK.findall(text_of(start))
    }
    ours = {
        page.resolve() for page in PAGES if page.parent == ROOT or ROOT / "docs" in page.parents
    }
    assert ours <= linked


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    words = re.findall(r"^\| ([^|]+?) \|", text_of(ROOT / "docs" / "glossary.md"), re.MULTILINE)[1:]
    assert words == sorted(set(words))


def test_the_words_of_the_spec_are_in_the_glossary() -> None:
    [table] = tables("1 Words")
    glossary = text_of(ROOT / "docs" / "glossary.md")
    assert all(f"| {row['word']} |" in glossary for row in table)


def test_the_licence_is_the_whole_apache_licence() -> None:
    licence = text_of(ROOT / "LICENSE")
    assert "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert re.search(r"^## \[Unreleased\]$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
