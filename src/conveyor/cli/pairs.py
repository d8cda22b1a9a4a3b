"""Options of the form name=value: parameters of the scraper, and labels of a job."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from conveyor.errors import RefusedToStart

ScraperParams = Annotated[
    list[str] | None, typer.Option(help="A scraper parameter, name=value; repeatable.")
]
Labels = Annotated[
    list[str] | None, typer.Option(help="A label of the job, key=value; repeatable.")
]


def parameters(given: Sequence[str]) -> dict[str, object] | None:
    """The scraper parameters of all `--param name=value`."""
    return {name: _value(name, text) for name, text in _parameters(given)} or None


def changed_parameters(given: Sequence[str]) -> dict[str, object] | None:
    """The same for a rerun, where `name=` removes a parameter."""
    pairs = _parameters(given)
    return {name: _value(name, text) if text else None for name, text in pairs} or None


def labels(given: Sequence[str]) -> dict[str, str] | None:
    """The job's metadata of all `--metadata key=value`."""
    return (
        dict(_pair(text, "--metadata must be key=value, like team=news") for text in given) or None
    )


def _parameters(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    return (_pair(text, "--param must be name=value, like js_render=true") for text in given)


def _value(name: str, text: str) -> object:
    return _headers(text) if name == "custom_headers" else text


def _pair(text: str, rule: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RefusedToStart(f"{rule}, got {text!r}")
    return name, value


def _headers(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise RefusedToStart(
            '--param custom_headers= must be a JSON object of strings, like {"Referer": "…"}'
        ) from None
