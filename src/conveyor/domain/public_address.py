"""Which addresses belong to the public internet, and which lead into somebody's own network.

For whoever connects where a stranger says. Asked of the address that is connected to, never of a
name: names can be spelled in many ways, and mean something else a moment later.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Tables of our own: what `ipaddress` calls global differs between versions of Python, and holds
# addresses that lead elsewhere.
NOT_PUBLIC = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",
            "100.64.0.0/10",  # shared by carriers; also metadata of some clouds
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure's own services, on each of its machines
            "169.254.0.0/16",  # the link; also metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocols; also metadata of some clouds
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # many at once
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
# Of IPv6 this part alone is given out: NAT64, addresses with an IPv4 address in them, local ones
# and those of many at once all lie outside.
GIVEN_OUT = IPv6Network("2000::/3")
NOT_PUBLIC_THERE = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocols; Teredo among them, with an IPv4 address inside
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, with an IPv4 address inside
            "3fff::/20",  # documentation
        ),
    )
)


def parsed(text: str) -> Address:
    """An address from its usual form. One of IPv4 in the clothes of IPv6 is undressed.

    Raises ValueError.
    """
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped and not address.scope_id:
        return address.ipv4_mapped
    return address


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC)
    if address.scope_id or address not in GIVEN_OUT:
        return False
    return not any(address in network for network in NOT_PUBLIC_THERE)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where connections may go: to public addresses, and to what is opened besides."""

    opened: tuple[Network, ...] = ()

    def permits(self, address: Address) -> bool:
        return is_public(address) or any(address in network for network in self.opened)

    def permits_all(self, addresses: Iterable[Address]) -> bool:
        """Whether every one will do: a name that also stands for a private address is refused."""
        return all(map(self.permits, addresses))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks as `10.0.0.0/8` or `::1`. Raises ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)
