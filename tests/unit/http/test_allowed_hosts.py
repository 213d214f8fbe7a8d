"""Hosts and addresses that a URL from data may name. Addresses need no resolver."""

from __future__ import annotations

import httpx
import pytest

from saga_activities.http.allowed_hosts import AllowedHosts, parse_allowed_hosts
from saga_activities.http.request import InvalidRequestError


@pytest.mark.parametrize(
    ("host", "permitted"),
    [
        ("files.shop.example", True),
        ("FILES.shop.example.", True),
        ("shop.example", False),
        ("a.customers.example", True),
        ("a.b.customers.example", True),
        ("customers.example", False),
        ("evilcustomers.example", False),
        ("10.1.2.3", True),
        ("10.2.0.1", False),
        ("::1", True),
    ],
)
def test_names_and_networks(host: str, permitted: bool) -> None:
    hosts = parse_allowed_hosts(["Files.shop.example", "*.customers.example", "10.1.0.0/16", "[::1]"])
    assert hosts.permits(host) is permitted


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "192.0.0.8",
        "192.0.0.10",
        "192.88.99.1",
        "::ffff:192.0.0.9",
        "3fff::1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fe80::1",
        "fec0::1",
        "fd00:ec2::254",
        "ff02::1",
    ],
)
async def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not public; add the address to `allowed_hosts`"):
        await AllowedHosts().resolve(address, 80)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
async def test_public_addresses_are_called(address: str) -> None:
    assert len(await AllowedHosts().resolve(address, 443)) == 1


async def test_a_listed_address_is_called() -> None:
    hosts = parse_allowed_hosts(["10.1.0.0/16"])
    assert await hosts.resolve("10.1.2.3", 80) == ["10.1.2.3"]
    with pytest.raises(InvalidRequestError, match=r"10\.2\.0\.1 is not public"):
        await hosts.resolve("10.2.0.1", 80)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".example", "a..example"])
async def test_a_name_without_an_address_cannot_be_reached(host: str) -> None:
    with pytest.raises(httpx.ConnectError):
        await AllowedHosts().resolve(host, 80)
