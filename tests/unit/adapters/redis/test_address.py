"""Addresses of Redis servers: what they mean, and what is refused."""

import pytest

from conveyor.adapters.redis.address import RedisAddress, is_address, parse_address

READ = {
    "redis://host": RedisAddress(host="host"),
    "redis://host/": RedisAddress(host="host"),
    "redis://host:7000/3": RedisAddress(host="host", port=7000, database=3),
    "redis://:p%40ss%2Fword@host": RedisAddress(host="host", password="p@ss/word"),
    "redis://us%3Aer:pw@host": RedisAddress(host="host", username="us:er", password="pw"),
    "redis://[::1]:7000": RedisAddress(host="::1", port=7000),
    "redis://host?prefix=team-a:dev": RedisAddress(host="host", prefix="team-a:dev"),
    "redis://host?cluster=true": RedisAddress(host="host", cluster=True),
    "redis://host/0?cluster=true&prefix=x": RedisAddress(host="host", cluster=True, prefix="x"),
    "redis://host/1?cluster=false": RedisAddress(host="host", database=1),
    "rediss://host": RedisAddress(host="host", tls=True),
    "rediss://host?ca=/etc/ca.pem": RedisAddress(host="host", tls=True, ca="/etc/ca.pem"),
}
REFUSED = [
    "redis:",
    "redis:host",
    "redis:///0",
    "redis://:6379",
    "redis://host:port",
    "redis://host:70000",
    "redis://host/one",
    "redis://host/-1",
    "redis://host/0/1",
    "redis://host#fragment",
    "redis://host?unknown=1",
    "redis://host?cluster=yes",
    "redis://host/1?cluster=true",
    "redis://host?prefix=",
    "redis://host?prefix={a}",
    "redis://host?prefix=" + "x" * 65,
    "redis://host?ca=/etc/ca.pem",
    "redis://host?cluster",
]


@pytest.mark.parametrize(("url", "address"), READ.items(), ids=READ)
def test_an_address_is_read(url: str, address: RedisAddress) -> None:
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
    address = parse_address("redis://user:S3CRET@host:7000")
    assert "S3CRET" not in f"{address} {address!r}"
    assert str(address) == "host:7000"
