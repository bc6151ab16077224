"""Purges that die leave the old history or the new, and are ended by whoever runs them again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.purging import PurgeRequest
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.repo.objects.incarnations import parse_object_key
from tests.support.architecture.sources import ROOT
from tests.support.builders.histories import copied
from tests.support.builders.repositories import ADA
from tests.support.effort import sampled, soaking
from tests.support.faults.backends import Crash, CrashBackend
from tests.support.faults.killed_purges import ROWS, TENSOR, opened, purge

SECRET = b"zebra-quixote-77"
MOST_OPERATIONS = 130
ROUNDS = 200 if soaking() else 2
WEIGHTS, OTHER = np.random.default_rng(0).standard_normal((2, 60, 80)).astype("f4")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two versions, and a model with one that was made of it by small changes."""
    folder = tmp_path_factory.mktemp("purged")
    repo = tr.init(folder / "store", author=ADA)
    rows = [{"name": SECRET.decode() if at == 3 else f"person {at}", "age": at} for at in range(9)]
    with repo.transaction("main", "one") as tx:
        tx.create_dataset("people", rows[:5])
        tx.save_model("net", {"w": WEIGHTS, "v": OTHER})
    with repo.transaction("main", "two") as tx:
        tx.dataset("people").append(rows[5:])
        tuned = {"w": WEIGHTS * np.float32(1.0001), "v": OTHER}
        tx.save_model("tuned", tuned, base=repo.model("net"))
    return folder


@pytest.fixture(scope="module")
def stored(prepared: Path) -> Backend:
    local, memory = LocalBackend(prepared / "store"), MemoryBackend()
    for each in local.list(""):
        memory.create(each.key, (local.read(each.key),))
    return memory


def contents(core: RepositoryCore) -> Iterator[bytes]:
    """Every object that is stored, expanded, and every record."""
    for each in core.backend.list(""):
        yield bytes(core.backend.read(each.key))
        if (parsed := parse_object_key(each.key)) is not None:
            with suppress(tr.PurgedError):
                yield bytes(core.objects.get(parsed[0]).payload)


def check_either(core: RepositoryCore, request: PurgeRequest, *, is_new: bool) -> None:
    """All can be read, and is as it was before the purge, or as it is after it."""
    state = core.log.refresh().state
    assert [*check_objects(core.objects, state, ObjectTotals(), deep=True)] == []
    tree = tree_of(core.objects, state.refs["heads/main"])
    found = dict(core.entries(tree))
    ages = [row["age"] for row in open_dataset(core.objects, found["datasets/people"].digest)]
    assert ages == [at for at in range(9) if at != 3 or not (is_new and request is ROWS)]
    net, tuned = (open_model(core.objects, found[f"models/{name}"]) for name in ("net", "tuned"))
    assert list(net) == (["v"] if is_new and request is TENSOR else ["v", "w"])
    assert (tuned["w"] == WEIGHTS * np.float32(1.0001)).all()


def check_ended(backend: Backend, request: PurgeRequest) -> None:
    """Whatever is there, running it again leaves nothing of what was erased."""
    core = opened(backend)
    check_either(core, request, is_new=bool(core.log.refresh().state.purges))
    purge(backend, request)
    core = opened(backend)
    check_either(core, request, is_new=True)
    erased = SECRET if request is ROWS else WEIGHTS.tobytes()[:64]
    assert not any(erased in each for each in contents(core))


@pytest.mark.parametrize("request_", [ROWS, TENSOR], ids=["rows", "tensor"])
@pytest.mark.parametrize("die_after", sampled(range(MOST_OPERATIONS), 3))
def test_a_purge_may_die_at_any_operation(
    stored: Backend, request_: PurgeRequest, die_after: int
) -> None:
    backend = copied(stored)
    with suppress(Crash, CommitOutcomeUnknown):
        purge(CrashBackend(backend, die_after), request_)
    check_ended(backend, request_)


@pytest.mark.timeout(7200)  # of a soak, beside others
def test_purges_that_are_killed_leave_the_old_or_the_new(prepared: Path) -> None:
    module = "tests.support.faults.killed_purges"
    command = [sys.executable, "-m", module, str(prepared), str(ROUNDS), "1"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ends = json.loads(told.stdout)
    assert set(ends) <= {"killed", "done"}, told.stderr
    assert "killed" in ends
    for number in range(ROUNDS):
        check_ended(LocalBackend(prepared / str(number)), (ROWS, TENSOR)[number % 2])
