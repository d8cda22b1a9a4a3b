"""What several commands take."""

from typing import Annotated

import typer

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
Url = Annotated[
    str | None, typer.Option(help="Base URL of the service, or CONVEYOR_URL [local port 8080].")
]
Key = Annotated[str | None, typer.Option(help="API key; better CONVEYOR_KEY or the file.")]
ConfigFile = Annotated[
    str | None, typer.Option(help="TOML file with `url` and `key` [~/.config/conveyor/cli.toml].")
]
Json = Annotated[bool, typer.Option("--json", help="Print the API's JSON.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Stay until the run is over.")]
