"""Addresses that the service may connect to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from tensorrepo.api.outbound.addresses import (
    AllowedTargets,
    is_global,
    parse_target,
    permitted,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.servers.hostile_web import GLOBAL_ADDRESSES, HOSTILE_ADDRESSES, HTTP


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_no_private_or_special_address_is_global(address: str) -> None:
    assert not is_global(ip_address(address))


@pytest.mark.parametrize("address", GLOBAL_ADDRESSES)
def test_addresses_of_the_internet_are_global(address: str) -> None:
    assert is_global(ip_address(address))


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https" + "://Example.ORG", "example.org", 443, "/"),
        ("http://example.org.:8080/a?b=c#d", "example.org", 8080, "/a?b=c"),
        ("https://[2606:4700::1111]/x", "2606:4700::1111", 443, "/x"),
        (HTTP + "8.8.8.8/", "8.8.8.8", 80, "/"),
        (HTTP + "xn--bcher-kva.example.org/", "xn--bcher-kva.example.org", 80, "/"),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, path: str) -> None:
    target = parse_target(url)
    assert (target.host, target.port, target.path) == (host, port, path)


@pytest.mark.parametrize(
    ("entry", "url", "address", "is_included"),
    [
        ("10.1.0.0/16", "http://example.org/", "10.1.2.3", True),
        ("10.1.0.0/16", "http://example.org/", "10.2.2.3", False),
        ("127.0.0.1", "http://127.0.0.1:99/", "127.0.0.1", True),
        ("::1", "http://[::1]/", "::1", True),
        ("host:8080", "http://host:8080/", "10.0.0.1", True),
        ("host:8080", "http://host/", "10.0.0.1", False),
        ("host", HTTP + "HOST:99/", "10.0.0.1", True),
        ("host", "https://example.com/", "10.0.0.1", False),
    ],
)
def test_the_operator_allows_networks_and_hosts(
    entry: str, url: str, address: str, *, is_included: bool
) -> None:
    allowed = AllowedTargets.parse([entry])
    assert allowed.includes(parse_target(url), ip_address(address)) is is_included


@pytest.mark.parametrize("entry", ["", HTTP + "x", "a b", "x/y", "x:99999", "10.0.0.1/8", "u@x"])
def test_what_is_neither_a_network_nor_a_host_is_refused(entry: str) -> None:
    with pytest.raises(InvalidInputError):
        AllowedTargets.parse([entry])


def test_one_private_address_taints_all_of_a_name() -> None:
    found = [ip_address("8.8.8.8"), ip_address("10.0.0.1")]
    assert permitted(parse_target("http://example.org/"), found, AllowedTargets()) == ()
