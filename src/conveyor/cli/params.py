"""`conveyor params`: the parameters of the scraper."""

from typing import Annotated

import msgspec
import typer

from conveyor.cli import output
from conveyor.domain.params import MEANINGS, values_of


def params(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the parameters of the scraper that `--param` takes, with values and meaning.

    A gateway may honour only some of them: submitting a job with another one is refused.
    """
    rows = [(name, values_of(name), meaning) for name, meaning in sorted(MEANINGS.items())]
    if as_json:
        heads = ("name", "values", "meaning")
        output.json_line(msgspec.json.encode([dict(zip(heads, row, strict=True)) for row in rows]))
        return
    output.table(("parameter", "values", "meaning"), rows)
