"""Transfers that are killed go on, and leave nothing half done."""

from __future__ import annotations

import json
import random
import sys
from functools import cache
from pathlib import Path

import pytest

from examples.s3_server import S3Server
from tensorrepo.repo.backends.base import PART_PREFIX
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.transfer.part_files import STEP_BYTES, STEPS_AHEAD, WHOLE_BYTES
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, files_at, new_repository, tip_of
from tests.support.effort import soaking
from tests.support.processes.forked_python import run_python
from tests.support.servers.metered_link import MeteredLink

ROOT = Path(__file__).parents[2]
KILLS = 3
SEEDS = range(50 if soaking() else 1)
LARGE = 6 << 20
IN_FLIGHT = 2  # large ones


@cache
def some_files() -> dict[str, bytes]:
    """Large files and small ones, made where a test asks for them."""
    large = {f"files/large{n}": random.Random(n).randbytes(LARGE) for n in range(IN_FLIGHT)}
    return large | {f"files/small{n}": random.Random(n).randbytes(10_000) for n in range(30)}


def killed(folder: Path, verb: str, kills: int, *words: str) -> dict[str, int]:
    """Transfers that were killed so many times, and the one that came to its end."""
    module = "tests.support.faults.killed_transfers"
    done = run_python("-m", module, folder, verb, str(kills), *words)
    told: dict[str, int] = json.loads(done.stdout)
    assert told["kills"]
    return told


def check_arrival(place: Path, tip: Digest | None, files: dict[str, bytes]) -> None:
    """All is there, whole, and nothing unfinished is left."""
    here = open_repository(LocalBackend(place), drivers={})
    state = here.log.refresh().state
    assert state.refs["heads/main"] == tip
    assert files_at(here, tip) == files
    assert list(check_objects(here.objects, state, ObjectTotals(), deep=True)) == []
    verify(here.backend)
    left = [path.name for path in (place / "tmp").glob("*")]
    assert [name for name in left if name.startswith(PART_PREFIX)] == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("verb", ["clone", "push"] if soaking() else ["push"])
def test_a_killed_transfer_goes_on_and_fetches_little_twice(
    verb: str, seed: int, tmp_path: Path
) -> None:
    origin = new_repository(LocalBackend(tmp_path / "origin"))
    commit_files(origin, some_files())
    commit_files(origin, {"files/small0": b"new"})
    new_repository(LocalBackend(tmp_path / "here"))
    told = killed(tmp_path, verb, KILLS, str(seed))
    check_arrival(tmp_path / "here", tip_of(origin), some_files() | {"files/small0": b"new"})
    # What a kill costs where nothing streams: 4 MiB of each large object in flight, small ones, and
    # the metadata.
    whole = sum(map(len, some_files().values()))
    spare = (told["kills"] + 1) * (500_000 + IN_FLIGHT * STEP_BYTES * STEPS_AHEAD)
    assert told["read_bytes"] < whole + spare


# Of what comes a kill loses 4 MiB at most, of all objects that are under way; to a store they go
# whole, and are sent again.
LOST_BYTES = {"clone": 4 << 20, "push": 64 << 20}


def link_files() -> dict[str, bytes]:
    """Packs, objects that are just fetched whole, and chunks; without soak one small pack."""
    if not soaking():
        return {"files/pack": random.Random(0).randbytes(24 << 20), "files/small": b"small"}
    packs = {f"files/pack{n}": random.Random(n).randbytes(64 << 20) for n in range(3)}
    whole = {f"files/w{n}": random.Random(n).randbytes(WHOLE_BYTES - 1000) for n in range(16)}
    return packs | whole | {f"files/c{n}": random.Random(n).randbytes(1 << 18) for n in range(256)}


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["clone", "push"] if soaking() else ["clone"])
def test_a_transfer_over_a_link_that_is_killed_goes_on(verb: str, tmp_path: Path) -> None:
    """At ten moments in soak, over 1 Gbit/s and 20 ms; bytes are counted on the link."""
    kills, files = 10 if soaking() else 2, link_files()
    far, near = tmp_path / "s3/bucket/far", tmp_path / ("here" if verb == "clone" else "origin")
    origin, target = (far, near) if verb == "clone" else (near, far)
    made = new_repository(LocalBackend(origin))
    commit_files(made, files)
    new_repository(LocalBackend(target))
    whole, counts = sum(map(len, files.values())), tmp_path / "counts"
    with (
        S3Server(tmp_path / "s3", latency_ms=20) as server,
        MeteredLink(int(server.url.rpartition(":")[2]), counts, bytes_per_second=125e6) as link,
    ):
        told = killed(tmp_path, verb, kills, "0", link.url, str(counts), str(whole))
    sys.stdout.write(f"{verb}: {json.dumps(told | {'whole': whole})}")  # pytest -rP shows it
    check_arrival(target, tip_of(made), files)
    spare = (told["kills"] + 1) * 500_000 + told["kills"] * LOST_BYTES[verb]
    assert told["read_bytes"] < whole * 1.01 + spare
