"""The pages of docs/reference, made from the code: `make reference` writes them, a test holds them."""

import inspect
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec

from conveyor import errors
from conveyor.adapters.http import direct_wire, page_wire, zenrows_errors
from conveyor.app.engine_rules import RULES
from conveyor.app.engines import SCHEMES
from conveyor.app.schemes import Location
from conveyor.cli import serve as cli
from conveyor.domain.failure import RefusalRule
from conveyor.domain.page_codes import PAGE_CODES
from conveyor.errors import CallerFault, ConveyorError, Unavailable
from conveyor.settings import Settings
from conveyor.settings_loader import CHOICES
from tests.docs import alarms
from tests.docs.api_reference import api_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
ABOUT_SETTINGS = (
    "Each is a flag where the command has one, else a variable, else a key of the TOML file named"
    " by `--config` or `CONVEYOR_CONFIG`, else its default. Durations are written `500ms`, `30s`,"
    " `5m`, `2h` or `14d`; a bare number is seconds. An unknown name stops the program, which"
    " names the nearest known one. A dash is unset."
)
ABOUT_ERRORS = (
    "Every error is `application/problem+json`, with `type`, `title`, `status`, `code` and mostly"
    " `detail`. Branch on `code`: it never changes. Repeating a call that got 4xx does not help"
    " until something else changes; a 5xx may be repeated, with the same `Idempotency-Key` if it"
    " creates something."
)
ABOUT_PAGE_CODES = (
    "A failed task has the code of its last attempt, in `error` of its result and in the groups of"
    " `GET …/failures`. `retry` is tried again as often as `retries` says, `fail` is not, `wait` and"
    " `postpone` are tried again without counting as attempts, and `account` ends the run. Gateways"
    " may have other codes; those are handled by their status ([ZenRows](../gateways/zenrows.md#by-status))."
    " `conveyor rerun --code CODE` repeats the tasks with a code."
)
ABOUT_ENGINES = (
    "An engine implements one kind of state. Each kind has a setting, whose value is a URL. The data"
    " folder is the one that `data` names; see [storage](../README.md) for what each engine stores."
)
ABOUT_RULES = (
    "The settings are checked before anything is opened. A refusal names the setting, what it must"
    " be, what it is, and what to change. `conveyor serve` may use shared engines too, and if"
    " `coordination` is `memory:` it must be the only process that does."
)
WHERE = {
    Location.MEMORY: "the memory of the process",
    Location.FOLDER: "the data folder",
    Location.SHARED: "a place that processes share",
}
FOR = {
    Location.MEMORY: "`serve`",
    Location.FOLDER: "`serve`",
    Location.SHARED: "`serve`, `api` and `worker`",
}
HEAD = "Made from the code by `make reference`; change it there.\n"


def pages() -> dict[str, str]:
    """Every page by its name."""
    return {
        "api.md": api_page(HEAD),
        "settings.md": settings_page(),
        "engines.md": engines_page(),
        "errors.md": errors_page(),
    }


def settings_page() -> str:
    rows = [_setting(name) for name in Settings.__struct_fields__]
    return "\n".join(
        [
            "# Settings",
            "",
            HEAD,
            ABOUT_SETTINGS,
            "",
            "| key | variable | default | flag | takes | meaning |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def engines_page() -> str:
    return "\n".join(
        [
            "# Engines",
            "",
            HEAD,
            ABOUT_ENGINES,
            "",
            "| setting | value | its state is in | for |",
            "|---|---|---|---|",
            *(row for kind in SCHEMES for row in _engines(kind)),
            "",
            "## Which engines fit together",
            "",
            ABOUT_RULES,
            "",
            "| rule | why |",
            "|---|---|",
            *(f"| {rule.requirement} | {rule.why} |" for rule in RULES),
            "",
        ]
    )


def _engines(kind: str) -> Iterator[str]:
    """The rows of one kind of state; an engine with and without an address has two."""
    for name, engine in SCHEMES[kind].items():
        form, options = engine.form, ""
        if engine.needs_address:  # and has the form [address][options]
            form, _, options = form.removeprefix("[").partition("]")
        for address in [*([""] if engine.address("") else []), *([form] if form else [])]:
            place = engine.location(address)
            url = f"{name}:{address}{options}"
            yield f"| {kind} | `{url}` | {WHERE[place]} | {FOR[place]} |"


def errors_page() -> str:
    told = [kind for kind in _kinds() if _status(kind)]
    return "\n".join(
        [
            "# Errors",
            "",
            HEAD,
            ABOUT_ERRORS,
            "",
            "| code | status | when | what to do |",
            "|---|---|---|---|",
            *(_error(kind) for kind in sorted(told, key=lambda kind: (_status(kind), kind.code))),
            "",
            "## Codes of pages",
            "",
            ABOUT_PAGE_CODES,
            "",
            "| code | handling | reason | when | what to do |",
            "|---|---|---|---|---|",
            *(_page_code(code, rule) for code, rule in page_rules().items()),
            "",
        ]
    )


def _setting(name: str) -> str:
    kind, meta = get_args(get_type_hints(Settings, include_extras=True)[name])
    default = {field.name: field.default for field in msgspec.structs.fields(Settings)}[name]
    flag = f"`--{name.replace('_', '-')}`" if name in _flags() else "-"
    cells = [name, f"CONVEYOR_{name.upper()}", _shown(default), flag, _takes(name, kind, meta)]
    return f"| {' | '.join(cells)} | {meta.description} |"


@cache
def _flags() -> set[str]:
    """Parameters of the commands that run a service."""
    commands = (cli.serve, cli.dev, cli.api, cli.worker)
    return {name for command in commands for name in inspect.signature(command).parameters}


def _takes(name: str, kind: object, meta: msgspec.Meta) -> str:
    if name in CHOICES:
        return ", ".join(CHOICES[name])
    if kind is timedelta:
        return "duration"
    if kind is int and meta.ge is None:
        return f"at most {meta.le}"
    if kind is int:
        return f"{meta.ge} to {meta.le}" if meta.le is not None else f"{meta.ge} or more"
    if kind is bool:
        return "true or false"
    return "list" if get_origin(kind) is tuple else "text"


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value is not None else "-"


def _duration(value: timedelta) -> str:
    if value < timedelta(seconds=1):
        return f"{value.total_seconds() * 1000:g}ms"
    for unit, seconds in (("h", 3600), ("m", 60)):
        if value.total_seconds() >= 2 * seconds and value.total_seconds() % seconds == 0:
            return f"{value.total_seconds() / seconds:.0f}{unit}"
    return f"{value.total_seconds():g}s"


def _kinds() -> Iterator[type[ConveyorError]]:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, ConveyorError) and kind is not CallerFault:
            yield kind


def _status(kind: type[ConveyorError]) -> int:
    """The status a caller sees; 0 when the error never reaches one."""
    if issubclass(kind, CallerFault):
        return kind.status
    if issubclass(kind, Unavailable):
        return 503
    return 500 if kind is ConveyorError else 0


def _error(kind: type[ConveyorError]) -> str:
    when = " ".join((kind.__doc__ or "").split())
    return f"| {kind.code} | {_status(kind)} | {when} | {kind.remedy} |"


def page_rules() -> dict[str, RefusalRule]:
    """Every code that a page can fail with, of all gateways."""
    return zenrows_errors.BY_CODE | direct_wire.BY_CODE | page_wire.CONVEYOR_CODES


def _page_code(code: str, rule: RefusalRule) -> str:
    when, remedy = PAGE_CODES[code]
    return f"| {code} | {rule.handling} | {rule.reason} | {when} | {remedy} |"


if __name__ == "__main__":
    for page, text in pages().items():
        (FOLDER / page).write_text(text)
    alarms.RULES.write_text(alarms.rules())
