"""Hostile addresses, and a web server that answers as hostile ones do.

One corpus for all that the service fetches: webhooks, providers of sign-in, imports.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

# Spellings of this machine, of its network and of a cloud's metadata, and what confuses parsers.
HTTP = "http" + "://"  # apart, as none of these is a host that a test relies on
HOSTILE_URLS = (
    HTTP + "127.0.0.1/",
    HTTP + "127.1/",
    HTTP + "127.0.0.1./",
    HTTP + "2130706433/",
    HTTP + "017700000001/",
    HTTP + "0177.0.0.1/",
    HTTP + "0x7f000001/",
    HTTP + "0x7f.0.0.1/",
    HTTP + "0x7F.1/",
    HTTP + "127.0.0.1:22/",
    HTTP + "0/",
    HTTP + "0.0.0.0/",
    HTTP + "[::]/",
    HTTP + "[::1]/",
    HTTP + "[0:0:0:0:0:0:0:1]/",
    HTTP + "[::ffff:127.0.0.1]/",
    HTTP + "[::ffff:7f00:1]/",
    HTTP + "[::127.0.0.1]/",
    HTTP + "[64:ff9b::7f00:1]/",
    HTTP + "[64:ff9b:1::a9fe:a9fe]/",
    HTTP + "[2002:7f00:1::]/",
    HTTP + "[2002:a9fe:a9fe::1]/",
    HTTP + "[2001:0:7f00:1::]/",
    HTTP + "[fe80::1]/",
    HTTP + "[fe80::1%25eth0]/",
    HTTP + "[fc00::1]/",
    HTTP + "[fd00:ec2::254]/",
    HTTP + "[ff02::1]/",
    HTTP + "[100::1]/",
    HTTP + "10.0.0.1/",
    HTTP + "172.16.0.1/",
    HTTP + "172.31.255.255/",
    HTTP + "192.168.1.1/",
    HTTP + "100.64.0.1/",
    HTTP + "100.127.255.255/",
    HTTP + "169.254.169.254/latest/meta-data/",
    HTTP + "169.254.170.2/",
    HTTP + "0xa9fea9fe/",
    HTTP + "2852039166/",
    HTTP + "0251.0376.0251.0376/",
    HTTP + "192.0.0.192/",
    HTTP + "198.18.0.1/",
    HTTP + "224.0.0.1/",
    HTTP + "240.0.0.1/",
    HTTP + "255.255.255.255/",
    HTTP + "192.88.99.1/",
    HTTP + "user@example.org/",
    HTTP + "user:secret@example.org/",
    HTTP + "example.org@127.0.0.1/",
    HTTP + "example.org:80@127.0.0.1/",
    HTTP + "@127.0.0.1/",
    HTTP + "127.0.0.1#@example.org/",
    HTTP + "127.0.0.1\\@example.org/",
    HTTP + "example.org\\@127.0.0.1/",
    HTTP + "example.org\t.127.0.0.1/",
    HTTP + "exa mple.org/",
    HTTP + "example.org\r\nX: y/",
    HTTP + "１２７.0.0.1/",
    HTTP + "127。0。0。1/",
    HTTP + "ⓛocalhost/",
    HTTP + "%31%32%37.0.0.1/",
    HTTP + "/etc/passwd",
    "http:/example.org",
    "http:example.org",
    "//example.org/",
    "example.org",
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "ftp://example.org/",
    "gopher://example.org/",
    "dict://127.0.0.1:11211/",
    "ldap://example.org/",
    "unix:///run/docker.sock",
    "data:,x",
    "jar:http://example.org!/",
    "http+unix://%2Frun%2Fdocker.sock/",
    "javascript:alert(1)",
    "",
    HTTP + "",
    HTTP + "example.org:0/",
    HTTP + "example.org:65536/",
    HTTP + "example.org:port/",
    HTTP + "example.org:/",
    HTTP + "[::1/",
    HTTP + "::1/",
    HTTP + "[127.0.0.1]/",
    HTTP + ".../",
    HTTP + "a..b/",
    HTTP + "-a.example.org/",
    HTTP + "example.org/" + "a" * 3000,
)
# Where a name may lead that nobody may reach.
HOSTILE_ADDRESSES = (
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.20.0.1", "192.168.0.1",
    "169.254.169.254", "100.64.1.1", "198.19.255.255", "192.0.2.1", "203.0.113.9", "224.0.0.251",
    "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::7f00:1", "fe80::1",
    "fc00::1", "fdff::1", "ff02::1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:808:808::1",
    "2001::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1",
)  # fmt: skip
GLOBAL_ADDRESSES = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1")


@dataclass
class HostileServer:
    """A server of this machine that answers each connection by `behave`; `heard` is what came."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Behavior = Callable[[socket.socket], None]


def answering(data: bytes) -> Behavior:
    """Sends `data` and ends."""
    return lambda connection: connection.sendall(data)


def redirecting(to: str) -> Behavior:
    head = f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
    return answering(head.encode())


def trickling(head: bytes, seconds: float = 0.05) -> Behavior:
    """Sends `head` and then a byte every `seconds`, for as long as anybody listens."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"a")
            time.sleep(seconds)

    return behave


def endless(head: bytes) -> Behavior:
    """Sends `head` and then as much as anybody takes."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(bytes(1 << 16))

    return behave


def silent(connection: socket.socket) -> None:
    """Says nothing until the other side goes."""
    while connection.recv(1 << 16):
        pass


@contextmanager
def hostile_server(behave: Behavior) -> Iterator[HostileServer]:
    """A server that answers every connection by `behave` until the block ends."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = HostileServer(listening.getsockname()[1])
    threads: list[threading.Thread] = []
    taken: list[socket.socket] = []

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            server.heard.append(connection.recv(1 << 16))
            behave(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                taken.append(connection)
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in taken:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *threads):
            thread.join()
