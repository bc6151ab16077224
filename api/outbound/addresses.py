"""Addresses that the service may connect to: global unicast, and what its operator allows.

Pure: what a host resolves to comes in. Whoever writes a URL into the service (a webhook, an import,
a provider of sign-in) must not reach through it what only the service can reach: its own machine,
its network, the metadata address of its cloud.

Source:
    IANA's registries of special-purpose addresses, of IPv4 and of IPv6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

IpAddress: TypeAlias = IPv4Address | IPv6Address
IpNetwork: TypeAlias = IPv4Network | IPv6Network

MAX_URL_CHARACTERS: Final = 2048
PORTS: Final = {"http": 80, "https": 443}
_SPECIAL_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
# All global unicast of IPv6. Outside of it lie loopback, link-local, unique local and multicast,
# and the forms that carry an address of IPv4: mapped, compatible, NAT64.
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_SPECIAL_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo among them, which carries an address of IPv4
        "2001:db8::/32",
        "2002::/16",  # 6to4, as Teredo
        "3fff::/20",
    )
)
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)"
                        r"(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")  # fmt: skip
_V6 = re.compile(r"[0-9a-f:.]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ODD = re.compile(r"[^\x21-\x7e]|\\")


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """Where a URL leads: `host` is a name in lower case, or an address without brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def address(self) -> IpAddress | None:
        """The address that the host is written as; None for a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """Host and port as the header ``Host`` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def shown(self) -> str:
        """For messages and logs: paths and queries of webhooks hold secrets."""
        return f"{self.scheme}://{self.authority}"


def parse_target(url: str) -> FetchTarget:
    """Take a URL apart, strictly: what two parsers might read differently is refused.

    Raises:
        InvalidInputError: no http(s) URL of a host, or one with a user, or a number for a host.
    """
    if len(url) > MAX_URL_CHARACTERS or _ODD.search(url):
        raise InvalidInputError(
            f"a URL has at most {MAX_URL_CHARACTERS} printable ASCII characters and no backslash; "
            "write other letters percent-encoded, and such hosts as punycode (xn--...)"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidInputError(f"this is no URL: {error}") from error
    if parts.scheme not in PORTS or not url.lower().startswith(f"{parts.scheme}://"):
        raise InvalidInputError("expected a URL that begins with https:// or http://")
    if "@" in parts.netloc:
        raise InvalidInputError("a URL with a user or password in it is not fetched: remove it")
    if port == 0 or parts.netloc.endswith(":"):
        raise InvalidInputError("the port of a URL is a number from 1 to 65535")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return FetchTarget(parts.scheme, _host(host, parts.netloc), port or PORTS[parts.scheme], path)


def _host(host: str, netloc: str) -> str:
    if netloc.startswith("["):
        if not _V6.fullmatch(host):  # a zone, say: which of this machine's networks
            raise InvalidInputError(f"[{host:.80}] is no address of IPv6")
        try:
            return str(IPv6Address(host))
        except ValueError as error:
            raise InvalidInputError(f"[{host:.80}] is no address of IPv6") from error
    name = host.removesuffix(".")
    if not _HOST_NAME.fullmatch(name):
        raise InvalidInputError(f"{host!r:.80} is no name of a host")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        # Resolvers read 2130706433, 0177.1 and 0x7f000001 as 127.0.0.1; only one form is taken.
        try:
            return str(IPv4Address(name))
        except ValueError as error:
            raise InvalidInputError(
                f"{host!r:.80} is no address: write four decimal numbers"
            ) from error
    return name


@dataclass(frozen=True, slots=True)
class AllowedTargets:
    """What an operator allows beyond global addresses.

    Attributes:
        networks: addresses, such as those of the office.
        hosts: pairs of a host's name and a port, wherever the name leads; port 0 stands for all.
    """

    networks: tuple[IpNetwork, ...] = ()
    hosts: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowedTargets:
        """Entries such as ``10.1.0.0/16``, ``127.0.0.1``, ``host`` and ``host:8080``.

        Raises:
            InvalidInputError: names the entry that is none of them.
        """
        networks: list[IpNetwork] = []
        hosts: set[tuple[str, int]] = set()
        for entry in entries:
            try:
                networks.append(ip_network(entry))
            except ValueError:
                hosts.add(_named_host(entry))
        return cls(tuple(networks), frozenset(hosts))

    def includes(self, target: FetchTarget, address: IpAddress) -> bool:
        """Whether `target`, which resolves to `address`, is among them."""
        if {(target.host, target.port), (target.host, 0)} & self.hosts:
            return True
        return any(address in network for network in self.networks)


NOTHING_MORE: Final = AllowedTargets()


def _named_host(entry: str) -> tuple[str, int]:
    try:
        target = parse_target(f"http://{entry}")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{entry!r:.100} is neither a network such as 10.1.0.0/16 nor a host such as host:8080"
        ) from error
    if target.path != "/" or entry.endswith("/"):
        raise InvalidInputError(f"{entry!r:.100}: a network such as 10.1.0.0/16, or a host")
    return target.host, target.port if entry.rpartition(":")[2].isdigit() else 0


def is_global(address: IpAddress) -> bool:
    """Whether anybody on the internet may reach that address: no machine's or network's own."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


def permitted(
    target: FetchTarget, addresses: Iterable[IpAddress], allowed: AllowedTargets
) -> tuple[IpAddress, ...]:
    """Addresses of `target`, if every one of them may be connected to; else none.

    One that may not taints all: a name that leads to both is a trap or a mistake.
    """
    found = tuple(addresses)
    good = (is_global(address) or allowed.includes(target, address) for address in found)
    return found if all(good) else ()
