"""`tensorrepo serve` as a process: it tells where it listens, answers, and ends in order."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.support.processes.forked_command import ForkedProcess
from tests.support.processes.shell import Shell

END_SECONDS = 30
AS_TO_A_FILE = "import sys; sys.stdout.reconfigure(line_buffering=False, write_through=False)"


@pytest.fixture
def serving(shell: Shell) -> Iterator[ForkedProcess]:
    """A service of the repository of a workspace."""
    words = ("serve", "here=.", "--port", "0", "--data", "service", "--json")
    process = shell.start(*words, code=AS_TO_A_FILE)
    yield process
    process.kill()
    process.communicate()


def test_it_tells_an_address_that_answers_and_a_token_that_counts(
    serving: ForkedProcess,
) -> None:
    told = json.loads(serving.stdout.readline())
    sent = {"Authorization": f"Bearer {told['token']}"}
    at = f"{told['url']}/api/v1/repositories"
    with httpx.Client(headers=sent, trust_env=False) as client:
        assert [one["name"] for one in client.get(at).json()["items"]] == ["here"]
        assert [ref["name"] for ref in client.get(f"{at}/here/-/refs").json()["items"]] == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(serving: ForkedProcess, how: signal.Signals) -> None:
    serving.stdout.readline()
    serving.send_signal(how)
    _, errors = serving.communicate(timeout=END_SECONDS)
    assert (serving.returncode, errors) == (0, "")


def test_a_setting_that_cannot_be_is_told_without_a_traceback(empty: Shell) -> None:
    assert "setting port" in empty.fails(2, "serve", "--port", "70000", "--data", "service")


def test_a_port_that_is_taken_is_told_and_takes_no_token_with_it(empty: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = empty.fails(2, "serve", "--port", port, "--data", "service")
    assert "--port" in told
    process = empty.start("serve", "--port", "0", "--data", "service", "--json")
    try:
        assert json.loads(process.stdout.readline())["token"].startswith("trp_")
    finally:
        process.kill()
        process.communicate()


def test_a_place_without_a_repository_is_not_served(empty: Shell) -> None:
    (empty.folder / "pictures").mkdir()
    for place in ("pictures", "nowhere", "pics=nowhere"):
        assert "tensorrepo init" in empty.fails(3, "serve", place, "--data", "service")


def test_a_token_is_shown_once(empty: Shell) -> None:
    for_each = []
    for _ in range(2):
        process = empty.start("serve", "--port", "0", "--data", "service", "--json")
        for_each.append(json.loads(process.stdout.readline())["token"])
        process.terminate()
        process.communicate(timeout=END_SECONDS)
    assert for_each[0].startswith("trp_")
    assert for_each[1] is None
