"""Addresses of PostgreSQL databases, as the settings have them."""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 5432
CONNECTIONS = 10
LEAST_CONNECTIONS = 4  # one for renewals, one for work, two for everything else
MOST_CONNECTIONS = 500
TLS_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
POOLERS = ("none", "transaction")
OPTIONS = {"host", "sslmode", "sslrootcert", "connections", "pooler"}
FORM = (
    "//[user[:password]@]host[:port]/database"
    "[?sslmode=…&sslrootcert=file&connections=10&pooler=transaction]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAddress:
    host: str  # a name, an address, or the folder of a Unix socket
    database: str
    port: int = PORT
    user: str | None = None  # None: the user of the process
    password: str | None = field(default=None, repr=False)
    tls: str = "prefer"  # as `sslmode` of libpq
    ca: str | None = None  # file of the authorities to trust; None: those of the system
    connections: int = CONNECTIONS  # of one process
    pooled: bool = False  # by a pooler that gives a connection for one transaction only

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def parse_address(url: str) -> PostgresAddress:
    """Parse `postgresql://…`. `ValueError`, which shows no part of it, if it is wrong."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    address = PostgresAddress(
        host=parts.hostname or options.get("host", ""),
        port=parts.port or PORT,
        database=unquote(parts.path.removeprefix("/")),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=options.get("sslmode", "prefer"),
        ca=options.get("sslrootcert"),
        connections=int(options.get("connections", CONNECTIONS)),
        pooled=options.get("pooler") == "transaction",
    )
    is_valid = (
        parts.scheme == "postgresql"
        and bool(address.host)
        and not (parts.hostname and "host" in options)
        and bool(address.database)
        and "/" not in address.database
        and not parts.fragment
        and options.keys() <= OPTIONS
        and address.tls in TLS_MODES
        and options.get("pooler", "none") in POOLERS
        and LEAST_CONNECTIONS <= address.connections <= MOST_CONNECTIONS
    )
    if not is_valid:
        raise ValueError(f"must be postgresql:{FORM}")
    return address


def is_address(url: str) -> bool:
    try:
        parse_address(url)
    except ValueError:
        return False
    return True
