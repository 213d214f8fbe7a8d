"""Hosts that come from data: a `url` computed from an input, or from what a participant answered.

Such a host must be on the connection's list, and every address of its name is checked at the time of connecting: a
list of names alone would leave the choice of the address to the owner of the name's DNS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from saga_activities.http.bounded_read import send_bounded
from saga_activities.http.request import DEFAULT_PORTS, InvalidRequestError
from saga_activities.http.response import HttpResponse

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address

_SPECIAL = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # RFC 6890: for protocols; Python calls some of them global
    ipaddress.IPv4Network("192.88.99.0/24"),  # RFC 7526: former 6to4 relays
    ipaddress.IPv6Network("3fff::/20"),  # RFC 9637: documentation
)


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """``names``: host names in lower case, `*.example.com` for those below; ``networks``: addresses that are allowed
    although they are not public."""

    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = field(default=())

    def permits(self, host: str) -> bool:
        """True if a URL may name this host (a name or an address)."""
        host = host.lower().rstrip(".")
        address = _parsed(host)
        if address is not None:
            return any(address in network for network in self.networks)
        return any(host.endswith(name[1:]) if name.startswith("*.") else host == name for name in self.names)

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of the host. Raises InvalidRequestError if one of them must not be called, httpx.ConnectError
        if there are none."""
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(
                f"{host} cannot be resolved ({getattr(error, 'strerror', None) or error})"
            ) from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        for text in addresses:
            address = _parsed(text)
            if address is None or not (_is_public(address) or any(address in each for each in self.networks)):
                raise InvalidRequestError(
                    f"`url` names {host}, whose address {text} is not public; add the address to `allowed_hosts` of "
                    "the connection if it may be called"
                )
        return addresses


def parse_allowed_hosts(entries: Sequence[str]) -> AllowedHosts:
    """Raises ValueError with an entry that is neither a host name, nor `*.` and a name, nor an address or network."""
    names: list[str] = []
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry.strip("[]")))
            continue
        except ValueError:
            name = entry.lower().rstrip(".")
        labels = name.removeprefix("*.").split(".")
        if not all(label and label.replace("-", "").replace("_", "").isalnum() and label.isascii() for label in labels):
            raise ValueError(entry)
        names.append(name)
    return AllowedHosts(tuple(names), tuple(networks))


async def send_foreign(
    client: httpx.AsyncClient,
    hosts: AllowedHosts,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    mask: Callable[[str], str],
) -> HttpResponse:
    """Send once, to an address that was checked: the client connects to it and does not resolve the name again.

    Raises as :func:`send_bounded` and :meth:`AllowedHosts.resolve`.
    """
    target = httpx.URL(url)
    failure = httpx.ConnectError(f"{target.host} has no address")
    for address in await hosts.resolve(target.host, target.port or DEFAULT_PORTS[target.scheme]):
        message = client.build_request(
            method,
            target.copy_with(host=address),
            headers={**headers, "host": target.netloc.decode("ascii")},
            content=content,
            extensions={"sni_hostname": target.raw_host.decode("ascii")},
        )
        try:
            return await send_bounded(client, message, mask)
        except httpx.ConnectError as error:
            failure = error
    raise failure


def _parsed(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return _is_public(embedded)
        if address.is_site_local:
            return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
