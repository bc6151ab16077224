"""Transfers that are killed go on, and leave nothing half done."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import PART_PREFIX
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.transfer.part_files import WHOLE_BYTES
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, files_at, new_repository, tip_of
from tests.support.effort import soaking

ROOT = Path(__file__).parents[2]
KILLS = 3
SEEDS = range(50 if soaking() else 1)
LARGE = 6 << 20
FILES = {f"files/large{n}": random.Random(n).randbytes(LARGE) for n in range(2)} | {
    f"files/small{n}": random.Random(n).randbytes(10_000) for n in range(30)
}
IN_FLIGHT = len([path for path in FILES if "large" in path])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("verb", ["clone", "push"])
def test_a_killed_transfer_goes_on_and_fetches_little_twice(
    verb: str, seed: int, tmp_path: Path
) -> None:
    origin = new_repository(LocalBackend(tmp_path / "origin"))
    commit_files(origin, FILES)
    commit_files(origin, {"files/small0": b"new"})
    new_repository(LocalBackend(tmp_path / "here"))
    module = "tests.support.faults.killed_transfers"
    command = [sys.executable, "-m", module, str(tmp_path), verb, str(KILLS), str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout)
    assert told["kills"]
    here = open_repository(LocalBackend(tmp_path / "here"), drivers={})
    state = here.log.refresh().state
    tip = tip_of(here)
    assert state.refs["heads/main"] == tip_of(origin)
    assert files_at(here, tip) == FILES | {"files/small0": b"new"}
    assert list(check_objects(here.objects, state, ObjectTotals(), deep=True)) == []
    verify(here.backend)
    left = [path.name for path in (tmp_path / "here" / "tmp").iterdir()]
    assert [name for name in left if name.startswith(PART_PREFIX)] == []
    # What a kill costs: 4 MiB of each large object in flight, small ones, and the metadata.
    whole = sum(map(len, FILES.values()))
    spare = (told["kills"] + 1) * (500_000 + IN_FLIGHT * WHOLE_BYTES)
    assert told["read_bytes"] < whole + spare
