"""What a service forgets while it runs."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.api.housekeeping import UPLOADS
from tensorrepo.api.repositories.directory import UNDELETE_NS
from tensorrepo.repo.backends.disk import STALE_PART_SECONDS
from tests.support.servers.service import RunningService, caches_of

PATH = "/api/v1/repositories"


def test_caches_forget_what_was_made_of_purged_rows(service: RunningService) -> None:
    running = service.service
    caches = caches_of(running)
    with service.client() as client:
        client.post(PATH, json={"name": "erased"}).raise_for_status()
        made = tr.open(running.directory.find("erased").url, author="Ann <a@example.org>")
        with made.transaction(message="first") as tx:
            tx.create_dataset("x", {"x": [1, 2, 3]})
        digest = made.entries("main")["datasets/x"].digest
        caches.of_datasets.put(f"{digest}.parquet-1", (b"rows",))
        caches.of_datasets.put(f"{'0' * 64}.parquet-1", (b"other rows",))
        caches.of_columns.put("column", (b"an example",))
        made.purge("x", where=tr.col("x") == 2, reason="asked")
        client.get(f"{PATH}/erased/-/refs").raise_for_status()
        running.directory.open("erased").core.log.refresh()
        running.housekeeping.turn()
    assert caches.of_datasets.get(f"{digest}.parquet-1") is None
    assert caches.of_datasets.get(f"{'0' * 64}.parquet-1") is not None
    assert caches.of_columns.get("column") is None


def test_what_cannot_be_forgotten_holds_up_nothing_else(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug, or a store that does not answer")

    running = service.service
    old = _part(running.settings.data / UPLOADS, "part-old", STALE_PART_SECONDS + 60)
    for of, name in ((running.housekeeping, "_forget_purged"), (running.directory, "expire")):
        monkeypatch.setattr(of, name, fail)
    spooled = _part(running.spool.folder / "owner", "spooled", 25 * 3600)
    running.housekeeping.turn()
    assert not old.exists()
    assert not spooled.exists()


def test_what_was_deleted_long_ago_is_erased_while_the_service_runs(
    service: RunningService,
) -> None:
    running = service.service
    with service.client() as client:
        client.post(PATH, json={"name": "brief"}).raise_for_status()
        url = running.directory.find("brief").url
        before = client.get(f"{PATH}/brief").json()["id"]
        with tr.open(url, author="Ann <a@example.org>").transaction(message="first") as tx:
            tx.create_dataset("x", {"x": [1]})
        assert client.get(f"{PATH}/brief/-/refs").json()["items"]
        client.delete(f"{PATH}/brief").raise_for_status()
        running.directory._mark("brief", time.time_ns() - UNDELETE_NS)
        running.housekeeping.turn()
        client.post(PATH, json={"name": "brief"}).raise_for_status()
        again = client.get(f"{PATH}/brief").json()["id"]
        refs = client.get(f"{PATH}/brief/-/refs").json()["items"]
    assert running.directory.find("brief").url == url
    assert again != before
    assert refs == []


def _part(folder: Path, name: str, age_seconds: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / name
    made.write_bytes(b"half")
    os.utime(made, (time.time() - age_seconds,) * 2)
    return made


def test_parts_of_files_that_nobody_went_on_with_are_dropped(service: RunningService) -> None:
    spool = service.service.spool
    old, new = (spool.folder / "owner" / f"{name}.parts" for name in ("old", "new"))
    for folder, age_seconds in ((old, 25 * 3600), (new, 60)):
        _part(folder, "whole", age_seconds)
        os.utime(folder, (time.time() - age_seconds,) * 2)
    service.service.housekeeping.turn()
    assert (old.exists(), new.exists()) == (False, True)


def test_uploads_that_nobody_went_on_with_are_dropped(service: RunningService) -> None:
    running = service.service
    with service.client() as client:
        client.post(PATH, json={"name": "parts"}).raise_for_status()
        client.get(f"{PATH}/parts").raise_for_status()
    own = Path(running.directory.open("parts").core.backend.url) / "tmp"
    data = running.settings.data / UPLOADS
    old = [_part(folder, "part-old", STALE_PART_SECONDS + 60) for folder in (own, data)]
    kept = [_part(data, "part-new", 60), _part(data, "other", STALE_PART_SECONDS + 60)]
    held = _part(data, "part-held", STALE_PART_SECONDS + 60)
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        running.housekeeping.turn()
    assert [path.exists() for path in old] == [False, False]
    assert all(path.exists() for path in (*kept, held))
