"""Commands that run a service, and the demo."""

import sys
from typing import Annotated, Any, Literal

import typer

from conveyor.cli.connect import with_options
from conveyor.errors import RefusedToStart

Config = Annotated[str | None, typer.Option(help="TOML file with the settings.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")]
Port = Annotated[int | None, typer.Option(help="Port to listen on [8080]; 0 for any free one.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Port for /healthz, /readyz and /metrics [8090]; 0 for any free one."),
]
Loops = Annotated[
    str | None,
    typer.Option(help="Loops to run, with commas [dispatch,control,sender,scheduler,sweeper]."),
]
Data = Annotated[str | None, typer.Option(help="Folder of the embedded engines [data].")]
Gateway = Annotated[str | None, typer.Option(help="URL of the scraping gateway; direct: for none.")]
Durability = Annotated[str | None, typer.Option(help="What writes survive: power or process.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error [info].")]

Flags = dict[str, Any]
with_settings = with_options(
    Flags,
    config=Config,
    host=Host,
    port=Port,
    data=Data,
    gateway=Gateway,
    durability=Durability,
    log_level=LogLevel,
)


@with_settings
def serve(flags: Flags) -> None:
    """Run a whole service in one process: the API and the workers."""
    serve_role("serve", flags)


@with_settings
def dev(
    flags: Flags,
    *,
    mock_gateway: Annotated[
        bool, typer.Option("--mock-gateway", help="Start a mock gateway too, and scrape that.")
    ] = False,
) -> None:
    """Run a service for development: like `serve`, with a mock gateway on request."""
    serve_role("dev", flags, mock_gateway=mock_gateway)


@with_options(Flags, config=Config, host=Host, port=Port)
def api(flags: Flags) -> None:
    """Serve the HTTP API only; workers run in other processes."""
    serve_role("api", flags)


@with_options(Flags, config=Config, host=Host, metrics_port=MetricsPort, loops=Loops)
def worker(flags: Flags) -> None:
    """Scrape, ingest and repair only; the API runs in another process."""
    serve_role("worker", flags)


@with_options(Flags, config=Config, data=Data)
def migrate(
    flags: Flags,
    *,
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; exit with 1 if a schema must be upgraded."),
    ] = False,
) -> None:
    """Create or upgrade what the engines need: schemas, buckets and their rules."""
    from conveyor.app import migrate as migrations  # noqa: PLC0415
    from conveyor.app.roles import run  # noqa: PLC0415
    from conveyor.settings_loader import load_settings  # noqa: PLC0415
    from conveyor.telemetry.logs import set_up_logs  # noqa: PLC0415

    settings = load_settings(flags, file=flags.pop("config", None))
    set_up_logs("warning", json=not sys.stderr.isatty())

    act = migrations.missing_migrations if check else migrations.migrate
    lines = 0

    async def report() -> None:
        nonlocal lines
        async for url, line in act(settings):
            typer.echo(f"{url} {line}")
            lines += 1

    run(report())
    if check and lines:
        raise typer.Exit(1)


def serve_role(role: str, flags: Flags, *, mock_gateway: bool = False) -> None:
    # Imported here: `conveyor --help` needs neither the engines nor the server.
    from conveyor.app import roles  # noqa: PLC0415
    from conveyor.settings_loader import load_settings  # noqa: PLC0415

    settings = load_settings(flags, file=flags.pop("config", None))
    roles.run(roles.serve_role(role, settings, mock_gateway=mock_gateway))


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


def demo(
    urls: Annotated[int, typer.Option(help="How many URLs to scrape.")] = 1000,
    data: Annotated[
        str, typer.Option(help="Folder for the results; emptied if a demo made it.")
    ] = "demo",
    engine: Annotated[
        Literal["aws", "postgres"] | None,
        typer.Option(
            help="Engine of a deployment with one api and two workers, from `make setup`."
        ),
    ] = None,
) -> None:
    """Scrape some URLs through the official client, end to end, and show the results."""
    from conveyor.cli.demo import run_demo  # noqa: PLC0415

    run_demo(urls, data, engine)
