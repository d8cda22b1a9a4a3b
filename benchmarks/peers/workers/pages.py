"""What every peer's task does: ask the gateway for a page, keep its body in a file of its own.

Each worker uses the fetcher that suits it: aiohttp where it is asynchronous, as the bare script
does; urllib3 where it has threads or greenlets, whose pool is made to be shared by them.
"""

import os
from pathlib import Path
from urllib.parse import urlencode

GATEWAY = os.environ["PEER_GATEWAY"]
BROKER = os.environ.get("PEER_BROKER", "")
IN_FLIGHT = 100


def address(number: int) -> str:
    return f"{GATEWAY}?{urlencode({'apikey': 'k', 'url': f'https://ok.example/{number}'})}"


def keep(folder: str, number: int, body: bytes) -> None:
    """A task that is done again leaves a second file, so that it can be counted."""
    try:
        _write(Path(folder, str(number)), body)
    except FileExistsError:
        _write(Path(folder, f"{number}.again-{os.urandom(4).hex()}"), body)


def _write(path: Path, body: bytes) -> None:
    with path.open("xb") as file:
        file.write(body)
