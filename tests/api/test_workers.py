"""`tensorrepo serve` as a process: several workers, TLS, and an orderly end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

import tensorrepo as tr
from tensorrepo.api.server import check_listening
from tensorrepo.api.settings import make_settings
from tensorrepo.repo.errors import InvalidInputError
from tests.support.processes.forked_command import forked_command
from tests.support.servers.certificates import make_certificate
from tests.support.servers.serving import ServeProcess, serving

pytestmark = pytest.mark.long

REPOSITORIES = "/api/v1/repositories"
PATIENCE_SECONDS = 60


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "host"])
def test_tokens_do_not_pass_a_network_in_plain_text(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--behind-proxy"):
        check_listening(make_settings(host=host, data=tmp_path))


@pytest.mark.parametrize(
    "given",
    [
        {"host": "127.0.0.1"},
        {"host": "localhost"},
        {"host": "::1"},
        {"host": "0.0.0.0", "behind_proxy": True},
        {"host": "0.0.0.0", "insecure": True},
        {"host": "0.0.0.0", "tls_certificate": "c.pem", "tls_key": "k.pem"},
    ],
    ids=str,
)
def test_it_listens_where_they_are_safe_or_somebody_said_so(
    given: dict[str, object], tmp_path: Path
) -> None:
    check_listening(make_settings(data=tmp_path, **given))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--tls-key"):
        check_listening(make_settings(data=tmp_path, tls_certificate="c.pem"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[ServeProcess]:
    """A service of two workers, with the repository `photos`; the last test here ends it."""
    with _two_workers(folder) as running:
        with running.client() as client:
            client.post(REPOSITORIES, json={"name": "photos"}).raise_for_status()
        url = str(folder / "data" / "repositories" / "_" / "photos")
        with tr.open(url, author="Ann <a@example.org>").transaction(message="first") as tx:
            tx.create_dataset("x", {"x": [1]})
        yield running


def _two_workers(folder: Path) -> AbstractContextManager[ServeProcess]:
    return serving(folder, "--workers", "2")


def test_several_workers_are_one_service(two: ServeProcess) -> None:
    answers = [_ask(two) for _ in range(20)]
    assert answers == [200] * 20
    assert _counted(_metrics(two)) >= 20


def _ask(running: ServeProcess) -> int:
    with running.client() as client:  # a connection each, so that both are asked
        return client.get(f"{REPOSITORIES}/photos").status_code


def _metrics(running: ServeProcess) -> str:
    with running.client() as client:
        return client.get("/metrics").text


def _counted(text: str) -> float:
    lines = (line for line in text.splitlines() if line.startswith("tensorrepo_requests_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_worker_that_is_killed_is_started_again(two: ServeProcess) -> None:
    before = _children(two.process.pid)
    os.kill(before[-1], signal.SIGKILL)
    _until(lambda: len(set(_children(two.process.pid)) - {before[-1]}) >= len(before))
    assert _ask_health(two) == 200


@pytest.mark.soak
def test_workers_are_started_again_where_what_forks_them_is_killed(two: ServeProcess) -> None:
    (forking,) = _forking(two.process.pid)
    before = _processes_of(forking)
    os.kill(forking, signal.SIGKILL)
    _until(lambda: len(set(_children(two.process.pid)) - set(before)) == len(before))
    _until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in before))
    assert _ask_health(two) == 200


def _ask_health(running: ServeProcess) -> int:
    with running.client() as client:
        return client.get("/health").status_code


def _children(pid: int) -> list[int]:
    """Workers of a parent: children of the one that forks them, beside multiprocessing's helper."""
    return [worker for forking in _forking(pid) for worker in _processes_of(forking)]


def _forking(pid: int) -> list[int]:
    return [one for one in _processes_of(pid) if "forkserver" in _told_of(one, "cmdline")]


def _processes_of(pid: int) -> list[int]:
    return [int(each) for each in _told_of(pid, f"task/{pid}/children").split()]


def _told_of(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended since it was listed
        return ""


def _until(is_so: object) -> None:
    stop_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < stop_at, "it never came to be"
        time.sleep(0.05)


@pytest.mark.soak
def test_what_was_begun_is_finished_when_the_only_worker_ends(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "1") as running:
        assert _answer_at_the_end(running).startswith(b"HTTP/1.1 201")
    assert (tmp_path / "data" / "repositories" / "_" / "late" / "repo.json").exists()


def _answer_at_the_end(running: ServeProcess) -> bytes:
    """What a request is answered that makes a repository and of which half came before SIGTERM."""
    host, _, port = running.url.removeprefix("http://").partition(":")
    body = b'{"name": "late"}'
    head = (
        f"POST {REPOSITORIES} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {running.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + body[:5])
        time.sleep(0.5)  # until it is read: a request that was not begun is not finished
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        connection.sendall(body[5:])
        answer = connection.recv(1 << 16)
    assert running.process.wait(PATIENCE_SECONDS) == 0
    return answer


def test_it_speaks_tls(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "127.0.0.1")
    options = ["--tls-certificate", str(made.certificate), "--tls-key", str(made.key)]
    with serving(tmp_path, *options) as running:
        assert running.url.startswith("https://127.0.0.1:")
        running.tls = ssl.create_default_context(cafile=str(made.certificate))
        assert _ask_health(running) == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.url + "/health", trust_env=False)


def test_the_command_refuses_an_open_network(tmp_path: Path) -> None:
    words = ["serve", "--host", "0.0.0.0", "--data", str(tmp_path)]
    with forked_command(words, tmp_path, {**os.environ, "HOME": str(tmp_path)}) as ended:
        _, told = ended.communicate(PATIENCE_SECONDS)
    assert ended.returncode == 2
    assert "--behind-proxy" in told
    assert "Traceback" not in told


@pytest.mark.soak
def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    with _two_workers(tmp_path) as running:
        children = _children(running.process.pid)
        running.process.kill()
        _until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children))


def test_what_was_begun_is_finished_when_the_service_ends(two: ServeProcess, folder: Path) -> None:
    children = _children(two.process.pid)
    assert _answer_at_the_end(two).startswith(b"HTTP/1.1 201")
    assert (folder / "data" / "repositories" / "_" / "late" / "repo.json").exists()
    _until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children))
