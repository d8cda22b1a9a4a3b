"""Which service a command speaks to, and as whom: flags, then variables, then a TOML file."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from conveyor.cli.remote import Remote
from conveyor.errors import RefusedToStart

DEFAULT_URL = "http://127.0.0.1:8080/v1"
DEFAULT_FILE = "~/.config/conveyor/cli.toml"
KNOWN = {"url", "key"}
ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^/?#@:\s]+)(:\d{1,5})?(/[^?#\s]*)?", re.ASCII)
KEY = re.compile(r"[\x20-\x7e]{1,512}")


def reach(
    url: str | None,
    key: str | None,
    file: str | None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Remote:
    environ = os.environ if environ is None else environ
    kept = _from_file(file)
    base = url or environ.get("CONVEYOR_URL") or kept.get("url") or DEFAULT_URL
    secret = key or environ.get("CONVEYOR_KEY") or kept.get("key")
    return Remote(_checked_url(base), _checked_key(secret))


def _from_file(file: str | None) -> dict[str, str]:
    path = Path(file or DEFAULT_FILE).expanduser()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is None:
            return {}
        raise RefusedToStart(f"{path}: there is no such file") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RefusedToStart(f"{path}: {_why(error)}") from None
    return _checked(path, found)


def _why(error: Exception) -> str:
    """What is wrong with the file, without a word of what is in it: a key may be."""
    if isinstance(error, OSError):
        return error.strerror or "cannot be read"
    return 'is not TOML in UTF-8; it holds lines such as url = "https://…/v1"'


def _checked(path: Path, found: Mapping[str, object]) -> dict[str, str]:
    for name, value in found.items():
        if name not in KNOWN:
            raise RefusedToStart(f"{path}: {name!r} is none of {', '.join(sorted(KNOWN))}")
        if not isinstance(value, str):
            raise RefusedToStart(f"{path}: {name!r} is a text, in quotes")
    return {name: str(value) for name, value in found.items()}


def _checked_url(url: str) -> str:
    found = ADDRESS.fullmatch(url)
    if not found or int((found[2] or ":0")[1:]) > 65_535:
        raise RefusedToStart(f"a base URL is like {DEFAULT_URL}; see --url and CONVEYOR_URL")
    return url.rstrip("/")


def _checked_key(key: str | None) -> str | None:
    # The HTTP library would name a key that it cannot send in its complaint.
    if key and not KEY.fullmatch(key):
        raise RefusedToStart("the API key is 1 to 512 printable ASCII characters")
    return key or None
