"""Load settings: code defaults, then a TOML file, then CONVEYOR_* variables, then flags.

A refusal says what must hold and what was given; an unknown name is answered with the nearest one.
"""

import math
import os
import re
import tomllib
from base64 import b64decode
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from conveyor.domain.json_bodies import LONGEST_SHOWN, brief
from conveyor.domain.public_address import networks
from conveyor.domain.submission import LEAST_TASK_BYTES
from conveyor.errors import RefusedToStart
from conveyor.settings import DIRECT, LOOPS, SECRET, Auth, Settings, masked, without_secrets

PREFIX = "CONVEYOR_"
# Variables that are not settings.
ELSEWHERE = {"CONVEYOR_ROLE", "CONVEYOR_CONFIG", "CONVEYOR_URL", "CONVEYOR_KEY"}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.ASCII)
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
ADDRESS = re.compile(r"https?://[^/\s]+(/\S*)?")
LONGEST = timedelta(days=36_500)  # so that no date to come is beyond the calendar
AGENT = re.compile(r"[A-Za-z_-]+([/ ][ -~]*)?")
KEY = re.compile(r"[\x21-\x7e]{1,512}")
ENCRYPTION = re.compile(r"file:(/[^\0\n]{1,4096})?|kms:[A-Za-z0-9:/_-]{1,2048}", re.ASCII)
MAY_BE_ZERO = {
    "direct_delay",
    "grace",
    "retry_first_delay",
    "retry_longest_delay",
    "scheduled_run_life",
}
CHOICES: dict[str, tuple[str, ...]] = {
    "auth": tuple(Auth),
    "durability": ("power", "process"),
    "engines": ("embedded", "aws", "postgres"),
    "http_client": ("conveyor", "aiohttp"),
    "log_format": ("auto", "json", "console"),
    "log_level": ("debug", "info", "warning", "error"),
    "step_functions": ("aws:", ""),
}
OF_METADATA = "of metadata"  # in `PRESETS`: the address that is given as `metadata`
EXAMPLES = {
    "metadata": "postgresql://user@host/database",
    "bodies": "s3://bucket/prefix",
    "blobs": "s3://bucket/prefix",
    "coordination": "redis://host:6379/0",
}
# Value of `engines` -> kind of state -> its engine, or None if it must be given.
PRESETS: dict[str, dict[str, str | None]] = {
    "aws": {
        "metadata": "dynamodb://conveyor",
        "tasks": "dynamodb://conveyor",
        "control_queue": "sqs://conveyor",
        "queues": "sqs://conveyor",
        **dict.fromkeys(("bodies", "blobs", "coordination")),
    },
    "postgres": {
        "tasks": OF_METADATA,
        "control_queue": OF_METADATA,
        "coordination": OF_METADATA,
        **dict.fromkeys(("metadata", "bodies", "blobs")),
    },
}


# Value of `engines` -> the lease of tasks. On DynamoDB each renewal of a task is a write.
PRESET_LEASES = {"aws": timedelta(seconds=90)}


def load_settings(
    flags: Mapping[str, object],
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Merge all sources and check the outcome; a flag that is None was not given."""
    environ = os.environ if environ is None else environ
    path = file or environ.get("CONVEYOR_CONFIG")
    given = {
        **(_from_file(Path(path)) if path else {}),
        **_from_environ(environ),
        **{name: value for name, value in flags.items() if value is not None},
    }
    _check_names(given)
    parsed = _with_engines(_parsed(given))
    try:
        settings = msgspec.convert(parsed, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise _of_wrong_type(error, parsed) from None
    _check_choices(settings)
    _check_addresses(settings)
    _check_direct(settings)
    _check_ports(settings)
    _check_networks(settings)
    _check_callers(settings)
    _check_sizes(settings)
    return settings


def _from_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RefusedToStart(f"settings file {path}: {error}") from None


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in ELSEWHERE
    }


def _check_names(given: Mapping[str, object]) -> None:
    for name in given:
        if name not in Settings.__struct_fields__:
            like = get_close_matches(name[:LONGEST_SHOWN], Settings.__struct_fields__, n=1)
            hint = f"; did you mean {like[0]!r}?" if like else ""
            raise RefusedToStart(f"settings: {brief(name)!r} is not a setting{hint}")


def _parsed(given: Mapping[str, object]) -> dict[str, object]:
    """Texts of variables and files in the types of their fields."""
    kinds = get_type_hints(Settings)
    return {name: _value(name, value, kinds[name]) for name, value in given.items()}


def _with_engines(given: dict[str, object]) -> dict[str, object]:
    """Add the engines of kinds whose setting is not given, as `engines` chooses them."""
    preset = PRESETS.get(str(given.get("engines")), {})
    missing = [kind for kind, url in preset.items() if url is None and kind not in given]
    if missing:
        shown = ", ".join(f"{kind} (such as {EXAMPLES[kind]})" for kind in missing)
        raise _refused("engines", f"come with {shown} unless it is embedded", given["engines"])
    chosen = {
        kind: given["metadata"] if url is OF_METADATA else url for kind, url in preset.items()
    }
    lease = PRESET_LEASES.get(str(given.get("engines")))
    return {**chosen, **({"lease": lease} if lease else {}), **given}


def _refused(name: str, requirement: str, given: object, remedy: str = "") -> RefusedToStart:
    """Say what must hold and what was given; secrets are never shown."""
    if isinstance(given, str) and name not in SECRET:
        text = repr(brief(without_secrets(given)))
    else:
        text = brief(masked(name, given))
    remedy = f": {remedy}" if remedy else ""
    return RefusedToStart(f"settings: {name} must {requirement}, got {text}{remedy}")


def _of_wrong_type(error: msgspec.ValidationError, parsed: Mapping[str, object]) -> RefusedToStart:
    """Say by its type what a setting must be; msgspec names it in its message: `$.name[0]`."""
    found = re.search(r"`\$\.(\w+)", str(error))
    assert found, error
    name = found[1]
    return _refused(name, f"be {_expected(name)}", parsed[name])


def _expected(name: str) -> str:
    hint = get_type_hints(Settings, include_extras=True)[name]
    kind, meta = get_args(hint)
    if kind in {int, float}:
        number = "a whole number" if kind is int else "a number"
        if meta.le is None:
            return f"{number} of at least {meta.ge or 0}"
        return f"{number} from {meta.ge or 0} to {meta.le}"
    if kind is bool:
        return "true or false"
    if get_origin(kind) is tuple:
        return "a list of whole numbers" if int in get_args(kind) else "a list of texts"
    return "a text"


def _value(name: str, value: object, kind: object) -> object:
    if kind is timedelta and not isinstance(value, timedelta):
        return _duration(name, str(value))
    if get_origin(kind) is tuple and isinstance(value, str):
        return tuple(one for one in re.split(r"[,\s]+", value) if one)
    return value


def _duration(name: str, text: str) -> timedelta:
    found = DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * UNITS[found[2] or "s"] if found else math.inf
    if seconds > LONGEST.total_seconds():
        raise _refused(name, "be a duration such as 30s, 5m, 2h or 14d, up to 36500d", text)
    return timedelta(seconds=seconds)


def _check_choices(settings: Settings) -> None:
    for name, choices in CHOICES.items():
        if getattr(settings, name) not in {None, *choices}:
            wanted = ", ".join(choice or "empty" for choice in choices)
            raise _refused(name, f"be one of {wanted}", getattr(settings, name))
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, timedelta) and value <= timedelta() and name not in MAY_BE_ZERO:
            raise _refused(name, "be longer than 0s", value)
    if not settings.loops or not set(settings.loops) <= set(LOOPS):
        raise _refused("loops", f"be one or more of {', '.join(LOOPS)}", settings.loops)
    if settings.renewal * 2 >= settings.lease:
        lease = masked("lease", settings.lease)
        raise _refused("renewal", f"be less than half of lease ({lease})", settings.renewal)


def _check_addresses(settings: Settings) -> None:
    if settings.gateway != DIRECT and not _is_address(settings.gateway):
        raise _refused("gateway", f"be an http or https URL, or {DIRECT}", settings.gateway)
    if settings.public_url is not None and not _is_address(settings.public_url):
        raise _refused("public_url", "be an http or https URL", settings.public_url)


def _check_callers(settings: Settings) -> None:
    """Refuse keys that the chosen mode of authentication does not use: one of both is a mistake."""
    if settings.api_keys and settings.mode is not Auth.FORWARD:
        raise _refused(
            "api_keys",
            f"be empty unless auth is forward, and auth is {settings.mode}",
            settings.api_keys,
            "leave them out, or set auth to forward",
        )
    if settings.gateway_key and settings.mode is not Auth.KEYS:
        raise _refused(
            "gateway_key",
            f"be empty unless auth is keys, and auth is {settings.mode}",
            settings.gateway_key,
            "leave it out, or set auth to keys",
        )
    if settings.gateway_key and not KEY.fullmatch(settings.gateway_key):
        requirement = "be 1 to 512 ASCII characters without spaces"
        raise _refused("gateway_key", requirement, settings.gateway_key)
    if not ENCRYPTION.fullmatch(settings.encryption):
        requirement = "be file:, file:/path, or kms: and the id, alias or ARN of a key"
        raise _refused("encryption", requirement, settings.encryption)
    if not all(map(_is_root_key, settings.encryption_key)):
        requirement = "be 32 bytes in base64, as `openssl rand -base64 32` prints them"
        raise _refused("encryption_key", requirement, settings.encryption_key)


def _is_root_key(text: str) -> bool:
    try:
        return len(b64decode(text, validate=True)) == 32
    except ValueError:
        return False


def _check_sizes(settings: Settings) -> None:
    if settings.task_bytes < LEAST_TASK_BYTES:
        raise _refused(
            "task_bytes",
            f"be at least {LEAST_TASK_BYTES}, which is what the limits of a task's URL, external "
            "id, metadata, headers and body add up to",
            settings.task_bytes,
        )


def _check_direct(settings: Settings) -> None:
    if not AGENT.fullmatch(settings.direct_user_agent):
        requirement = "be a name such as MyBot/1.0 (+URL)"
        raise _refused("direct_user_agent", requirement, settings.direct_user_agent)
    if settings.direct_delay * 4 > settings.gateway_deadline:
        deadline = masked("gateway_deadline", settings.gateway_deadline)
        raise _refused(
            "direct_delay",
            f"be at most a quarter of gateway_deadline ({deadline})",
            settings.direct_delay,
        )


def _check_ports(settings: Settings) -> None:
    for name in ("direct_ports", "webhook_ports"):
        ports = getattr(settings, name)
        if not ports or not all(0 < port < 65_536 for port in ports):
            raise _refused(name, "be one or more ports from 1 to 65535", ports)


def _check_networks(settings: Settings) -> None:
    for name in ("direct_allow_private", "webhook_allow_private"):
        try:
            networks(getattr(settings, name))
        except ValueError:
            raise _refused(
                name, "be networks such as 10.0.0.0/8", getattr(settings, name)
            ) from None


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    return bool(host) and ADDRESS.fullmatch(text) is not None
