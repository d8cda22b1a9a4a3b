"""Which addresses are public: all known ways into somebody's own network are refused."""

from ipaddress import IPv4Address, IPv6Address, ip_network

import can_ada
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.public_address import Reach, is_public, networks, parsed

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",  # the old way of putting IPv4 into IPv6
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",  # translated
    "64:ff9b::a9fe:a9fe",  # NAT64
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",  # Teredo
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4
    "2002:a9fe:a9fe::",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "198.20.0.1",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2606:4700::1111",
    "2a00:1450::1",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused(text: str) -> None:
    assert not is_public(parsed(text))
    assert not Reach().permits(parsed(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_is_let_through(text: str) -> None:
    assert is_public(parsed(text))
    assert Reach().permits(parsed(text))


@given(st.ip_addresses(v=4))
def test_nothing_public_is_what_python_calls_private(address: IPv4Address) -> None:
    assert not (is_public(address) and (address.is_private or address.is_multicast))


@given(st.ip_addresses(v=6))
def test_the_same_of_the_longer_ones(address: IPv6Address) -> None:
    assert not (is_public(address) and (address.is_private or address.is_multicast))


@given(st.ip_addresses(v=4))
def test_other_clothes_change_nothing(address: IPv4Address) -> None:
    assert parsed(f"::ffff:{address}") == address
    assert is_public(parsed(f"::ffff:{address}")) == is_public(address)


@pytest.mark.parametrize(
    "spelled",
    [
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "0177.0.0.1",
        "127.1",
        "\uff11\uff12\uff17.0.0.1",
    ],
)
def test_odd_spellings_of_a_host_come_to_the_usual_one(spelled: str) -> None:
    """As URLs are stored, and as the places of redirects are read."""
    assert not is_public(parsed(can_ada.parse(f"http://{spelled}/").hostname))


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0177.0.0.1", "1.2.3.4.5", "[::1]"])
def test_what_is_no_address_in_its_usual_form_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="IPv4 or IPv6"):
        parsed(text)


def test_networks_can_be_opened() -> None:
    reach = Reach(networks(["10.1.2.3/8", "127.0.0.1", "fd00::/8"]))
    for text in ("10.9.9.9", "::ffff:10.0.0.1", "127.0.0.1", "fd00::1", "8.8.8.8"):
        assert reach.permits(parsed(text)), text
    for text in ("127.0.0.2", "192.168.0.1", "fe80::1", "169.254.169.254"):
        assert not reach.permits(parsed(text)), text
    assert reach.opened[0] == ip_network("10.0.0.0/8")


def test_all_addresses_of_a_name_have_to_do() -> None:
    assert Reach().permits_all(map(parsed, ["8.8.8.8", "1.1.1.1"]))
    assert not Reach().permits_all(map(parsed, ["8.8.8.8", "10.0.0.1"]))


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        networks(["10.0.0.0/33"])
