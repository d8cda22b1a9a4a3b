"""The `conveyor` command."""

import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from conveyor import __version__
from conveyor.cli import keys, operators, people
from conveyor.cli.groups import GroupedCommands
from conveyor.errors import ConveyorError, RefusedToStart
from conveyor.settings import Settings
from conveyor.settings_loader import load_settings
from conveyor.wiring import Role

app = typer.Typer(
    cls=GroupedCommands,
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A durable inbox for scrape jobs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

people.register(app)
operators.register(app)
keys.register(app)

Config = Annotated[str | None, typer.Option(help="A TOML file of settings.")]
Host = Annotated[str | None, typer.Option(help="Where to listen [127.0.0.1].")]
Port = Annotated[int | None, typer.Option(help="Port to listen on [8080]; 0 for any free one.")]
Data = Annotated[str | None, typer.Option(help="Folder of the embedded engines [data].")]
Gateway = Annotated[str | None, typer.Option(help="URL of the scraping gateway; direct: for none.")]
Durability = Annotated[str | None, typer.Option(help="What writes survive: power or process.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error [info].")]


def main() -> None:
    try:
        app()
    except ConveyorError as error:
        print(f"conveyor: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, RefusedToStart) else 1)


@app.callback(invoke_without_command=True)
def choose(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Without a command, CONVEYOR_ROLE chooses: api, worker or dev."""
    if version:
        print(f"conveyor {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        role = os.environ.get("CONVEYOR_ROLE")
        if role is None:
            print(context.get_help())
            raise typer.Exit(2)
        if role not in set(Role):
            raise RefusedToStart(f"CONVEYOR_ROLE is api, worker or dev, not {role!r}")
        _serve(Role(role), {})


@app.command()
def dev(  # noqa: PLR0917 - a command's parameters are its flags
    config: Config = None,
    host: Host = None,
    port: Port = None,
    data: Data = None,
    gateway: Gateway = None,
    durability: Durability = None,
    log_level: LogLevel = None,
    mock_gateway: Annotated[
        bool, typer.Option("--mock-gateway", help="Scrape a mock gateway, started beside it.")
    ] = False,
) -> None:
    """Run every role in one process, on the embedded engines."""
    flags = {
        "host": host,
        "port": port,
        "data": data,
        "gateway": gateway,
        "durability": durability,
        "log_level": log_level,
    }
    _serve(Role.DEV, flags, config, mock_gateway=mock_gateway)


@app.command()
def api(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Serve the HTTP API; workers run elsewhere."""
    _serve(Role.API, {"host": host, "port": port}, config)


@app.command()
def worker(config: Config = None) -> None:
    """Scrape, ingest and repair; the API runs elsewhere."""
    _serve(Role.WORKER, {}, config)


@app.command()
def mock_gateway(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.")] = 8081,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
) -> None:
    """Run a stand-in for the scraping gateway: deterministic by URL, for trying things out."""
    from conveyor.cli.serving import run  # noqa: PLC0415 - commands load what they need
    from conveyor.testing.mock_gateway import serve  # noqa: PLC0415

    try:
        run(serve(host, port))
    except OSError as error:
        raise RefusedToStart(f"cannot listen on {host}:{port}: {error.strerror}") from None


@app.command()
def demo(
    urls: Annotated[int, typer.Option(help="How many URLs to scrape.")] = 1000,
    data: Annotated[str, typer.Option(help="Folder for the results.")] = "demo",
) -> None:
    """Scrape some URLs through the official client, end to end, and show what came of it."""
    from conveyor.cli.demo import run_demo  # noqa: PLC0415

    run_demo(urls, data)


def _serve(
    role: Role,
    flags: Mapping[str, object],
    config: str | None = None,
    *,
    mock_gateway: bool = False,
) -> None:
    from conveyor.cli.serving import run, serve_role  # noqa: PLC0415

    settings: Settings = load_settings(flags, file=config)
    run(serve_role(role, settings, mock_gateway=mock_gateway))
