"""Which addresses belong to the public internet, and which lead into a private network.

Webhooks and the direct gateway connect to hosts that callers choose. They check the address that
they connect to, never the name: a name has many spellings, and may resolve to another address a
moment later.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# `ipaddress.is_global` is not used: its result differs between versions of Python, and it includes
# addresses that lead elsewhere, such as those of 6to4.
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
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
# The only part of IPv6 that is allocated. NAT64, addresses that embed an IPv4 address, local and
# multicast addresses all lie outside it.
ALLOCATED = IPv6Network("2000::/3")
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
    """Parse an address. An IPv4-mapped IPv6 address becomes the IPv4 address. Raises ValueError."""
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped and not address.scope_id:
        return address.ipv4_mapped
    return address


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC)
    if address.scope_id or address not in ALLOCATED:
        return False
    return not any(address in network for network in NOT_PUBLIC_THERE)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where connections may go: to public addresses, and to networks that the operator allowed."""

    opened: tuple[Network, ...] = ()

    def permits(self, address: Address) -> bool:
        return is_public(address) or any(address in network for network in self.opened)

    def permits_all(self, addresses: Iterable[Address]) -> bool:
        """Whether all are permitted. A name that also resolves to a private address is refused."""
        return all(map(self.permits, addresses))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks such as `10.0.0.0/8` or `::1`. Raises ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)
