"""The page about the command line tells of every command and every option, and of no other."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from conveyor.cli.main import GROUPS, build_app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
NAMES = [*GROUPS["Jobs"], *GROUPS["Live runs"], *GROUPS["Schedules and webhooks"]]
FOR_OPERATORS = ["keys", "operator", "backup", "doctor", "dlq", "migrate", "params"]
SHARED = {"--url", "--key", "--config", "--json"}
AT_THE_TOP = {"--help", "--install-completion", "--show-completion"}


def _commands() -> dict[str, Any]:
    commands: dict[str, Any] = getattr(typer.main.get_command(build_app()), "commands", {})
    return commands


def _options(name: str) -> set[str]:
    """Those of a command, or of all its verbs."""
    command = _commands()[name]
    takers = list(getattr(command, "commands", {}).values()) or [command]
    return {
        option
        for taker in takers
        for param in taker.params
        for option in param.opts
        if option[0] == "-"
    }


def _section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"there is no heading {name!r}"
    return found[1]


def _named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


@pytest.mark.parametrize("name", [*NAMES, *FOR_OPERATORS])
def test_each_command_has_its_section_an_example_and_all_options(name: str) -> None:
    section = _section(name)
    assert re.search(rf"^```sh\n(?:.*\n)*?.*conveyor {name}\b", section, re.MULTILINE)
    own = {option for option in _options(name) - SHARED if option.startswith("--")}
    assert own <= _named(section)


@pytest.mark.parametrize("name", NAMES)
def test_each_command_takes_the_shared_options(name: str) -> None:
    assert _options(name) >= SHARED
    assert _named(_section("Service and key")) == SHARED


def test_no_option_is_named_that_no_command_has() -> None:
    there = {option for name in (*NAMES, *FOR_OPERATORS) for option in _options(name)}
    assert _named(PAGE) <= there | AT_THE_TOP


@pytest.mark.parametrize("name", [*NAMES, *FOR_OPERATORS])
def test_options_in_examples_belong_to_their_command(name: str) -> None:
    for line in re.findall(rf"conveyor {name} ([^`\n]*)", PAGE):
        assert _named(line) <= _options(name) | AT_THE_TOP


def test_help_has_a_group_for_every_command() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(_commands())
