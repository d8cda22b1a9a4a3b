"""Addresses of Redis and Valkey servers, as the setting `coordination` has them."""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 6379
PREFIX = "conveyor"
PREFIXES = re.compile(r"[\w.:-]{1,64}", re.ASCII)  # without braces, which choose the cluster's slot
OPTIONS = {"prefix", "cluster", "ca"}
FLAGS = {"true": True, "false": False}
FORM = "//[user:password@]host[:port][/database][?prefix=…&cluster=true&ca=file]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    host: str
    port: int = PORT
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None  # file of the authorities to trust; None: those of the system
    cluster: bool = False
    prefix: str = PREFIX  # of every key and channel

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(url: str) -> RedisAddress:
    """Parse `redis://` or `rediss://` (TLS). `ValueError`, which shows no part of it, if it is wrong."""
    parts = urlsplit(url)
    path = parts.path.removeprefix("/")
    options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    address = RedisAddress(
        host=parts.hostname or "",
        port=parts.port or PORT,
        database=int(path or 0),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=parts.scheme == "rediss",
        ca=options.get("ca"),
        cluster=FLAGS.get(options.get("cluster", "false"), False),
        prefix=options.get("prefix", PREFIX),
    )
    is_valid = (
        bool(address.host)
        and not parts.fragment
        and path.isdecimal() == bool(path)
        and options.keys() <= OPTIONS
        and options.get("cluster", "false") in FLAGS
        and bool(PREFIXES.fullmatch(address.prefix))
        and not (address.cluster and address.database)  # a cluster has no other database
        and not (address.ca is not None and not address.tls)
    )
    if not is_valid:
        raise ValueError(f"must be {parts.scheme}:{FORM}")
    return address


def is_address(url: str) -> bool:
    try:
        parse_address(url)
    except ValueError:
        return False
    return True
