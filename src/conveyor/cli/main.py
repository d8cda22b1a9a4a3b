"""The `conveyor` command.

Modules that a command needs are imported when it runs: `conveyor jobs` must not load the server.
"""

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from conveyor import __version__
from conveyor.cli import jobs, keys, operators, output
from conveyor.cli.hints import explained
from conveyor.errors import ConveyorError, RefusedToStart

ROLES = ("api", "worker", "serve", "dev")
GROUPS = {
    "Jobs": (
        "submit",
        "add",
        "close",
        "jobs",
        "runs",
        "status",
        "results",
        "export",
        "history",
        "errors",
        "rerun",
        "delete",
    ),
    "Live runs": ("pause", "resume", "stop"),
    "Running a service": ("serve", "dev", "api", "worker"),
    "Administration": ("keys", "doctor", "dlq"),
    "Trying it out": ("demo", "mock-gateway"),
}


class GroupedCommands(TyperGroup):
    """Lists the commands in `conveyor --help` by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - an override
        # Typer brings its own copy of click in some versions: there is no one type to name.
        width = formatter.width - 6 - max(map(len, self.commands))
        placed = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in self.commands if name not in placed)
        for heading, names in {**GROUPS, "Other commands": others}.items():
            rows = [
                (name, self.commands[name].get_short_help_str(width))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


app = typer.Typer(
    cls=GroupedCommands,
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A durable inbox for scrape jobs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

jobs.register(app)
operators.register(app)
keys.register(app)

Config = Annotated[str | None, typer.Option(help="A TOML file of settings.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")]
Port = Annotated[int | None, typer.Option(help="Port to listen on [8080]; 0 for any free one.")]
Data = Annotated[str | None, typer.Option(help="Folder of the embedded engines [data].")]
Gateway = Annotated[str | None, typer.Option(help="URL of the scraping gateway; direct: for none.")]
Durability = Annotated[str | None, typer.Option(help="What writes survive: power or process.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error [info].")]


def main() -> None:
    output.open_standard_streams()
    sys.exit(output.finish(_exit_code()))


def _exit_code() -> int:
    try:
        app()
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


@app.callback(invoke_without_command=True)
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
        _serve("serve" if role == "dev" else role, {})


@app.command()
def serve(  # noqa: PLR0917 - a command's parameters are its flags
    config: Config = None,
    host: Host = None,
    port: Port = None,
    data: Data = None,
    gateway: Gateway = None,
    durability: Durability = None,
    log_level: LogLevel = None,
) -> None:
    """Run a whole service in one process: the API and the workers."""
    _serve("serve", _flags(host, port, data, gateway, durability, log_level), config)


@app.command()
def dev(  # noqa: PLR0917
    config: Config = None,
    host: Host = None,
    port: Port = None,
    data: Data = None,
    gateway: Gateway = None,
    durability: Durability = None,
    log_level: LogLevel = None,
    mock_gateway: Annotated[
        bool, typer.Option("--mock-gateway", help="Start a mock gateway too, and scrape that.")
    ] = False,
) -> None:
    """Run a service for development: like `serve`, with a mock gateway on request."""
    flags = _flags(host, port, data, gateway, durability, log_level)
    _serve("serve", flags, config, mock_gateway=mock_gateway)


@app.command()
def api(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Serve the HTTP API only; workers run in other processes."""
    _serve("api", {"host": host, "port": port}, config)


@app.command()
def worker(config: Config = None) -> None:
    """Scrape, ingest and repair only; the API runs in another process."""
    _serve("worker", {}, config)


@app.command()
def mock_gateway(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.")] = 8081,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Run a mock scraping gateway: its responses depend only on the URL."""
    from conveyor.app.roles import run  # noqa: PLC0415
    from conveyor.mock_gateway.server import serve as serve_mock  # noqa: PLC0415

    try:
        run(serve_mock(host, port))
    except OSError as error:
        raise RefusedToStart(f"cannot listen on {host}:{port}: {error.strerror}") from None


@app.command()
def demo(
    urls: Annotated[int, typer.Option(help="How many URLs to scrape.")] = 1000,
    data: Annotated[str, typer.Option(help="Folder for the results.")] = "demo",
) -> None:
    """Scrape some URLs through the official client, end to end, and show the results."""
    from conveyor.cli.demo import run_demo  # noqa: PLC0415

    run_demo(urls, data)


def _flags(  # noqa: PLR0917
    host: str | None,
    port: int | None,
    data: str | None,
    gateway: str | None,
    durability: str | None,
    log_level: str | None,
) -> dict[str, object]:
    return {
        "host": host,
        "port": port,
        "data": data,
        "gateway": gateway,
        "durability": durability,
        "log_level": log_level,
    }


def _serve(
    role: str,
    flags: Mapping[str, object],
    config: str | None = None,
    *,
    mock_gateway: bool = False,
) -> None:
    from conveyor.app.roles import run, serve_role  # noqa: PLC0415
    from conveyor.settings_loader import load_settings  # noqa: PLC0415

    run(serve_role(role, load_settings(flags, file=config), mock_gateway=mock_gateway))
