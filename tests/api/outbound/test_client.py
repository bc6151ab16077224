"""The one client for what the service fetches, against hostile names, addresses and servers."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from tensorrepo.api.outbound.addresses import AllowedTargets, IpAddress
from tensorrepo.api.outbound.client import OutboundClient
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, StorageError
from tests.support.servers.certificates import make_certificate, tls_server
from tests.support.servers.hostile_web import (
    HOSTILE_ADDRESSES,
    HOSTILE_URLS,
    HTTP,
    answering,
    endless,
    hostile_server,
    redirecting,
    silent,
    trickling,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


def _leads_to(*addresses: str) -> OutboundClient:
    return OutboundClient(resolve=lambda *_: [ip_address(each) for each in addresses])


@pytest.fixture
def local() -> Iterator[OutboundClient]:
    """A client that may ask this machine, as an operator allows it."""
    client = OutboundClient(AllowedTargets.parse(["127.0.0.1"]))
    yield client
    client.close()


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_no_hostile_url_is_fetched(url: str) -> None:
    def never(*_: object) -> list[IpAddress]:
        # A name that passes as one leads to this machine, as an attacker's own does.
        return [ip_address("127.0.0.1")]

    with pytest.raises((InvalidInputError, PermissionDenied)):
        OutboundClient(resolve=never).request("GET", url)


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_no_name_that_leads_to_a_private_address_is_fetched(address: str) -> None:
    with pytest.raises(PermissionDenied):
        _leads_to("8.8.8.8", address).request("GET", "https://example.test/")


def test_the_connection_goes_to_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[ip_address("127.0.0.1")]])  # a second question would end the test
    monkeypatch.setattr("socket.getaddrinfo", _refuse_names)
    allowed = AllowedTargets.parse(["example.test"])
    client = OutboundClient(allowed, resolve=lambda *_: next(answers))
    with hostile_server(answering(OK)) as server:
        answer = client.request("GET", f"http://example.test:{server.port}/a?b=1")
    assert (answer.status, answer.body) == (200, b"hi")
    assert server.heard[0].startswith(b"GET /a?b=1 HTTP/1.1\r\n")
    assert f"Host: example.test:{server.port}".encode() in server.heard[0]


def _refuse_names(host: str, *rest: object, **_: object) -> list[object]:
    """As the system's, of addresses alone: nothing is looked up a second time."""
    ip_address(host)
    return [(2, 1, 6, "", (host, rest[0]))]


def test_the_name_of_the_host_counts_for_tls(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "example.test")
    allowed = AllowedTargets.parse(["example.test", "example.com"])
    trusting = ssl.create_default_context(cafile=str(made.certificate))
    client = OutboundClient(allowed, resolve=lambda *_: [ip_address("127.0.0.1")], tls=trusting)
    with tls_server(made) as port:
        assert client.request("GET", f"https://example.test:{port}/").status == 200
        with pytest.raises(StorageError, match=r"example\.com.*certificate"):
            client.request("GET", f"https://example.com:{port}/")


def test_a_redirect_is_an_answer_and_not_followed(local: OutboundClient) -> None:
    with hostile_server(redirecting(HTTP + "169.254.169.254/latest/meta-data/")) as server:
        answer = local.request("GET", server.url)
    assert answer.status == 302
    assert len(server.heard) == 1


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"],
    ids=["nothing", "headers", "body"],
)
def test_who_answers_slowly_is_left(local: OutboundClient, head: bytes) -> None:
    with hostile_server(trickling(head)) as server, pytest.raises(StorageError):
        local.request("GET", server.url, timeout_seconds=0.3)


def test_who_says_nothing_is_left(local: OutboundClient) -> None:
    with (
        hostile_server(silent) as server,
        pytest.raises(StorageError, match=r"within 0\.2 seconds"),
    ):
        local.request("GET", server.url, timeout_seconds=0.2)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
    ],
    ids=["length", "no-length", "headers"],
)
def test_endless_answers_end(local: OutboundClient, head: bytes) -> None:
    with hostile_server(endless(head)) as server, pytest.raises(StorageError):
        local.request("GET", server.url, max_bytes=1 << 20)


def test_environment_proxies_are_not_asked(
    local: OutboundClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with hostile_server(answering(OK)) as server:
        assert local.request("GET", server.url).body == b"hi"


@pytest.mark.parametrize("header", ["Host", "content-length", "Transfer-Encoding"])
def test_headers_of_the_connection_are_not_the_callers(local: OutboundClient, header: str) -> None:
    with pytest.raises(InvalidInputError):
        local.request("GET", "http://127.0.0.1/", headers={header: "x"})


def test_no_answer_tells_which_address_a_name_has() -> None:
    with pytest.raises(PermissionDenied) as refused:
        _leads_to("10.9.8.7").request("GET", "https://example.test/secret?token=1")
    assert "10.9.8.7" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_resolver_that_does_not_answer_is_left() -> None:
    with hostile_server(silent) as server:

        def stuck(*_: object) -> list[IpAddress]:
            local = OutboundClient(AllowedTargets.parse(["127.0.0.1"]))
            local.request("GET", server.url, timeout_seconds=1)
            raise AssertionError("nobody answers there")

        with pytest.raises(StorageError, match=r"within 0\.1 seconds"):
            OutboundClient(resolve=stuck).request("GET", "http://example.org", timeout_seconds=0.1)
