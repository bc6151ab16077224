"""A service that is killed, and clients of it beside collections: nothing acknowledged is lost."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import CommitOutcomeUnknown, ConflictError, StorageError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, files_at, tip_of
from tests.support.effort import soaking
from tests.support.faults.remote_writers import remote
from tests.support.processes.forked_python import run_python
from tests.support.servers.service_process import ServiceProcess

SECONDS = 600 if soaking() else 1
KILLED_SECONDS = 300 if soaking() else 1


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    started = ServiceProcess(tmp_path / "service").start()
    yield started
    started.stop()


@pytest.mark.timeout(900)
def test_clients_that_omit_invent_and_replay_leave_nothing_dangling_beside_collections(
    service: ServiceProcess,
) -> None:
    store = service.create()
    commit_files(remote(service.repository, service.token), {"files/first": b"first"})
    module = "tests.support.faults.remote_writers"
    words = [service.repository, service.token, str(store), str(SECONDS), "1", "3"]
    told = run_python("-m", module, *words)
    report = json.loads(told.stdout)
    assert [one["failed"] for one in report.values() if "failed" in one] == []
    assert report["forger"]["whole 200"] > 0
    assert report["collector1"]["collected"] > 0
    verify(LocalBackend(store))


@pytest.mark.timeout(900)
def test_what_a_killed_service_acknowledged_is_there_once(service: ServiceProcess) -> None:
    store = service.create()
    commit_files(remote(service.repository, service.token), {"first": b"first"})
    acknowledged: list[dict[str, bytes]] = [{} for _ in range(3)]
    ended, stop_at = threading.Event(), time.monotonic() + KILLED_SECONDS

    def write(number: int) -> None:
        mine, step = None, 0
        while not ended.is_set():
            files = {f"{number}/{step}": b"%d" % step}
            with suppress(StorageError, CommitOutcomeUnknown, ConflictError):
                mine = mine or remote(service.repository, service.token)
                commit_files(mine, files, message=f"{number} {step}")
                acknowledged[number] |= files
            step += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    chance = random.Random(7)
    while time.monotonic() < stop_at:
        _wait_for_more(acknowledged)
        time.sleep(chance.uniform(0, 0.5))
        service.kill()
        service.start()
    ended.set()
    for thread in threads:
        thread.join()
    there = open_repository(LocalBackend(store), drivers={})
    tip = tip_of(there)
    assert tip is not None
    found = files_at(there, tip)
    assert all(files.items() <= found.items() for files in acknowledged)
    messages = [commit.message for _, commit in walk(there.objects, [tip])]
    assert len(messages) == len(set(messages)), "a transaction landed twice"
    assert sum(map(len, acknowledged)) > 0
    verify(LocalBackend(store))


def _wait_for_more(acknowledged: Sequence[Mapping[str, bytes]]) -> None:
    """Wait until something is acknowledged: on a slow machine that takes longer than a kill."""
    before, until = sum(map(len, acknowledged)), time.monotonic() + 60
    while sum(map(len, acknowledged)) == before and time.monotonic() < until:
        time.sleep(0.02)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_upload_goes_on_after_the_service_was_killed(service: ServiceProcess) -> None:
    store = service.create()
    encoded = encode_object(Kind.CHUNK, bytes(range(256)) * 8192)
    data, digest, half = b"".join(encoded.parts), encoded.link.digest, 1 << 20
    path = f"/api/v1/repositories/team/photos/-/uploads/{digest}"
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        client.put(f"{path}/{len(data)}/0", content=data[:half]).raise_for_status()
    service.kill()
    service.start()
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        known = client.get(path, params={"bytes": len(data)}).json()
        done = client.put(f"{path}/{len(data)}/{half}", content=data[half:]).json()
    assert (known["received"], done["stored"]) == (half, True)
    assert LocalBackend(store).read(f"objects/{digest[:2]}/{digest[2:]}") == data


@pytest.mark.timeout(300)
def test_two_processes_of_a_service_lose_nothing(tmp_path: Path) -> None:
    first = ServiceProcess(tmp_path / "service").start()
    store = first.create()
    second = ServiceProcess(tmp_path / "service").start()

    def write(number: int, process: ServiceProcess) -> None:
        mine = remote(process.repository, process.token)
        for step in range(5):
            commit_files(mine, {f"{number}/{step}": b"%d" % step})
        mine.close()

    threads = [
        threading.Thread(target=write, args=(number, (first, second)[number % 2]))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.stop()
    second.stop()
    there = open_repository(LocalBackend(store), drivers={})
    assert len(files_at(there, tip_of(there))) == 20
