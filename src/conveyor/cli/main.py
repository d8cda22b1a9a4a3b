"""The `conveyor` command.

A command's modules are imported when it is called: `conveyor jobs` must not load the server.
"""

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

from conveyor import __version__
from conveyor.cli import output
from conveyor.cli.examples import examples
from conveyor.cli.hints import explained
from conveyor.errors import ConveyorError, RefusedToStart

ROLES = ("api", "worker", "serve", "dev")
# The commands by purpose, in the order of `conveyor --help`, each with its module.
GROUPS = {
    "Jobs": {
        "submit": "submit",
        "add": "add",
        "close": "jobs",
        "jobs": "jobs",
        "runs": "jobs",
        "status": "jobs",
        "results": "results",
        "export": "results",
        "history": "jobs",
        "errors": "jobs",
        "failures": "reruns",
        "rerun": "reruns",
        "delete": "jobs",
    },
    "Live runs": {"pause": "jobs", "resume": "jobs", "stop": "jobs"},
    "Schedules and webhooks": {
        "schedule": "schedules",
        "webhook": "webhooks",
        "signing-keys": "webhooks",
    },
    "Running a service": {
        "serve": "serve",
        "dev": "serve",
        "api": "serve",
        "worker": "serve",
        "migrate": "serve",
    },
    "Administration": {
        "keys": "keys",
        "operator": "operator",
        "backup": "maintenance",
        "doctor": "maintenance",
        "dlq": "maintenance",
    },
    "Reference": {"params": "params"},
    "Trying it out": {"demo": "serve", "mock-gateway": "serve"},
}

WHOLE = 1_000  # characters: no first sentence is longer, and the formatter wraps it


class WholeCommands(TyperGroup):
    """Lists commands with their whole first sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Typer brings its own copy of click in some versions: there is no one type to name.
        with formatter.section("Commands"):
            self.write_commands(formatter, self.list_commands(ctx))

    def write_commands(self, formatter: Any, names: Iterable[str]) -> None:
        formatter.write_dl(
            [(name, self.commands[name].get_short_help_str(WHOLE)) for name in names]
        )


class GroupedCommands(WholeCommands):
    """Lists the commands in `conveyor --help` by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - an override
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                self.write_commands(formatter, names)


def build_app(called: str = "") -> typer.Typer:
    """The command line with all commands, or only with the one that is called.

    Importing all modules and building all parsers would take longer than most commands run.
    """
    app = typer.Typer(
        cls=GroupedCommands,
        no_args_is_help=False,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="A durable inbox for scrape jobs.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(choose)
    modules = {name: module for group in GROUPS.values() for name, module in group.items()}
    for name in [called] if called in modules else modules:
        command = getattr(import_module(f"conveyor.cli.{modules[name]}"), name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            for verb in command.registered_commands:
                verb.epilog = examples(f"{name} {_name_of(verb)}")
            app.add_typer(command, name=name, cls=WholeCommands, epilog=examples(name))
        else:
            app.command(name, epilog=examples(name))(command)
    return app


def _name_of(verb: CommandInfo) -> str:
    return verb.name or str(getattr(verb.callback, "__name__", ""))


def main() -> None:
    output.open_standard_streams()
    sys.exit(output.finish(_exit_code()))


def _exit_code() -> int:
    try:
        build_app(sys.argv[1] if len(sys.argv) > 1 else "")()
    except ConveyorError as error:
        output.complain(explained(error))
        return 2 if isinstance(error, RefusedToStart) else 1
    except OSError as error:
        if not output.is_broken_output(error):
            raise
        return output.broken_output(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def choose(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Without a command, CONVEYOR_ROLE selects one: api, worker, serve or dev."""
    if version:
        print(f"conveyor {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        role = os.environ.get("CONVEYOR_ROLE")
        if role is None:
            print(context.get_help())
            raise typer.Exit(2)
        if role not in ROLES:
            raise RefusedToStart(f"CONVEYOR_ROLE must be api, worker, serve or dev, got {role!r}")
        from conveyor.cli.serve import serve_role  # noqa: PLC0415 - for this case only

        serve_role(role, {})
