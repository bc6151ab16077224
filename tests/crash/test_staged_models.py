"""Whoever dies between two adds and their commit, the branch has none of the models or both."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorrepo.connect import Machine
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import LocalState, create_repository, open_repository
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.workspace.add import add
from tensorrepo.workspace.add_request import AddMode, AddRequest
from tensorrepo.workspace.committing import commit_staged
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.state import Workspace, create_workspace
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import ADA
from tests.support.effort import sampled
from tests.support.faults.backends import Crash, CrashBackend, WrappedBackend
from tests.support.reference.collector import condemn, delete

T = TypeVar("T")
ONE = np.random.default_rng(1).normal(0, 0.02, (200, 400)).astype("f4")
MODELS = {"one": {"w": ONE}, "two": {"w": ONE + np.float32(1e-6)}}


def session(backend: Backend, root: Path) -> WorkspaceSession:
    machine = Machine({"TENSORREPO_AUTHOR": ADA}, root, root)
    repository = open_repository(
        backend, drivers={}, local=LocalState(pending=root / ".tensorrepo/pending")
    )
    return WorkspaceSession(machine, repository, Workspace(root))


def add_model(at: WorkspaceSession, name: str) -> None:
    path = at.here.root / f"{name}.safetensors"
    add(at, AddRequest(path, "models", name, AddMode.REPLACE), lambda *_: None)


def add_two_and_commit(at: WorkspaceSession) -> None:
    add_model(at, "two")
    commit_staged(at, "Both")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryBackend, Path]:
    """One model is staged, and the other one, tuned from it, lies there as a file."""
    root, backend = tmp_path_factory.mktemp("staged"), MemoryBackend()
    create_repository(backend, drivers={}, local=LocalState())
    create_workspace(root, "memory://", Head(branch="main"))
    for name, tensors in MODELS.items():
        save_file(tensors, root / f"{name}.safetensors")
    add_model(session(backend, root), "one")
    return backend, root


def committed(backend: Backend) -> dict[str, Any]:
    """The models of the branch by name."""
    repository = open_repository(backend, drivers={})
    commit = repository.log.refresh().state.refs.get("heads/main")
    if commit is None:
        return {}
    tree = tree_of(repository.objects, commit)
    entries = repository.entries(tree, "models/")
    return {path: open_model(repository.objects, entry) for path, entry in entries}


WRITES = 10  # of the second add and the commit, ends of uploads as well


class DiesWriting(CrashBackend):
    """Dies right after write `die_after`, counted from 1."""

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        if verb == "read" and len(self.operations) < self.die_after:
            return work()
        return super().step(verb, key, work)


@pytest.mark.parametrize("at", sampled(range(1, WRITES + 1), 4))
def test_models_added_one_by_one_are_committed_together_or_not_at_all(
    staged: tuple[MemoryBackend, Path], tmp_path: Path, at: int
) -> None:
    store, root = copied(staged[0]), tmp_path / "work"
    shutil.copytree(staged[1], root)
    dying = session(DiesWriting(store, at), root)
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        add_two_and_commit(dying)
    verify(store)
    assert len(committed(store)) in {0, 2}
    add_two_and_commit(session(store, root))
    repository = open_repository(store, drivers={})
    delete(repository, condemn(repository))
    found = committed(store)
    assert np.array_equal(found["models/two"]["w"], MODELS["two"]["w"])
    assert np.array_equal(found["models/one"]["w"], ONE)


def test_the_second_model_is_stored_as_the_difference_from_the_staged_one(
    staged: tuple[MemoryBackend, Path], tmp_path: Path
) -> None:
    backend, root = WrappedBackend(copied(staged[0])), tmp_path / "work"
    shutil.copytree(staged[1], root)
    working = session(backend, root)
    backend.operations.clear()
    add_two_and_commit(working)
    assert sum(verb != "read" for verb, _ in backend.operations) == WRITES
    members = committed(backend)["models/two"].packs.members.entries.values()
    assert {one.depth for one in members} == {0, 1}
