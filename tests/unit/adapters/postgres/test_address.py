"""Addresses of PostgreSQL databases: what they mean, and what is refused."""

import pytest

from conveyor.adapters.postgres.address import PostgresAddress, is_address, parse_address

READ = {
    "postgresql://host/db": PostgresAddress(host="host", database="db"),
    "postgresql://host:7000/db": PostgresAddress(host="host", port=7000, database="db"),
    "postgresql://us%3Aer:p%40ss%2Fword@host/db": PostgresAddress(
        host="host", database="db", user="us:er", password="p@ss/word"
    ),
    "postgresql://[::1]:7000/d%20b": PostgresAddress(host="::1", port=7000, database="d b"),
    "postgresql:///db?host=/run/postgresql": PostgresAddress(host="/run/postgresql", database="db"),
    "postgresql://host/db?sslmode=verify-full&sslrootcert=/etc/ca.pem": PostgresAddress(
        host="host", database="db", tls="verify-full", ca="/etc/ca.pem"
    ),
    "postgresql://host/db?connections=4": PostgresAddress(
        host="host", database="db", connections=4
    ),
    "postgresql://host/db?pooler=transaction": PostgresAddress(
        host="host", database="db", pooled=True
    ),
    "postgresql://host/db?pooler=none": PostgresAddress(host="host", database="db"),
}
REFUSED = [
    "postgresql:",
    "postgresql:host/db",
    "postgresql://host",
    "postgresql://host/",
    "postgresql:///db",
    "postgresql://host:port/db",
    "postgresql://host:70000/db",
    "postgresql://host/a/b",
    "postgresql://host/db#fragment",
    "postgresql://host/db?unknown=1",
    "postgresql://host/db?host=/run",
    "postgresql://host/db?sslmode=maybe",
    "postgresql://host/db?pooler=session",
    "postgresql://host/db?connections=3",
    "postgresql://host/db?connections=many",
    "postgresql://host/db?connections",
    "postgres://host/db",
]


@pytest.mark.parametrize(("url", "address"), READ.items(), ids=READ)
def test_an_address_is_read(url: str, address: PostgresAddress) -> None:
    assert parse_address(url) == address
    assert is_address(url)


@pytest.mark.parametrize("url", REFUSED)
def test_a_wrong_address_is_refused_without_being_shown(url: str) -> None:
    assert not is_address(url)
    secret = url.replace("://", "://user:S3CRET@", 1)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - some are of the standard library
        parse_address(secret)
    assert "S3CRET" not in str(refused.value)


def test_an_address_shows_no_password() -> None:
    address = parse_address("postgresql://user:S3CRET@host:7000/db")
    assert "S3CRET" not in f"{address} {address!r}"
