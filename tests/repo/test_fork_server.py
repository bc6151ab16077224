"""Servers that fork: one for each process, and what is said where a machine has no room for one."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.fork_server import ForkServerProgram, ForkServers

# Answers each request by the file that comes with it.
ECHO = """
import socket, sys
requests = socket.socket(fileno=int(sys.argv[-1]))
while True:
    message, files, _, _ = socket.recv_fds(requests, 100, 1)
    if not message:
        break
    with socket.socket(fileno=files[0]) as answers:
        answers.send(message + b" " + sys.argv[2].encode())
"""


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    made = ForkServers(ForkServerProgram(ECHO, {}, arguments=("told",)))
    yield made
    made.server().close()


def asked(servers: ForkServers, message: bytes) -> bytes:
    near, far = socket.socketpair()
    with near:
        with far:
            servers.server().request(message, [far.fileno()])
        return near.recv(100)


def test_a_server_answers_and_one_that_ended_is_followed_by_another(servers: ForkServers) -> None:
    first = servers.server()
    assert (asked(servers, b"one"), servers.server()) == (b"one told", first)
    first.process.kill()
    first.process.wait()
    assert asked(servers, b"two") == b"two told"
    assert servers.server() is not first
    first.close()


def test_a_server_ends_with_its_socket(servers: ForkServers) -> None:
    server = servers.server()
    asked(servers, b"it runs")
    server._requests.close()
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_machine_without_room_is_an_error_that_passes_by_itself(
    monkeypatch: pytest.MonkeyPatch, number: int, servers: ForkServers
) -> None:
    def start(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", start)
        with pytest.raises(StorageError, match="no room for a process of its own") as told:
            servers.server()
    assert (told.value.transient, told.value.busy) == (True, True)
    assert set(os.listdir("/proc/self/fd")) == before
