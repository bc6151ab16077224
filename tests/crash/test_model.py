"""Whenever somebody dies who saves a model, the branch is as it was or has it whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.merging.three_way import ModelMergeDriver
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import store_model
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.changes.transaction import begin, tree_of
from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.repo.history.trees import lookup
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import ADA
from tests.support.effort import sampled
from tests.support.faults.backends import Crash, CrashBackend, WrappedBackend

PATH = "models/m"
DRIVERS: Any = {Kind.MODEL: ModelMergeDriver()}
OLD = {
    "w": np.random.default_rng(1).normal(0, 0.02, (300, 400)).astype("f4"),
    "small": np.arange(50.0),
}
NEW = {
    "w": OLD["w"] + np.random.default_rng(9).normal(0, 1e-6, OLD["w"].shape).astype("f4"),
    "small": np.arange(50.0) + 1,
}


def opened(backend: Backend) -> RepositoryCore:
    return open_repository(backend, drivers=DRIVERS)


def model_at(repository: RepositoryCore) -> StoredModel:
    commit = repository.log.refresh().state.refs["heads/main"]
    entry = lookup(repository.objects, tree_of(repository.objects, commit), PATH)
    assert entry is not None
    return open_model(repository.objects, entry)


def save(repository: RepositoryCore, tensors: Any) -> None:
    """One commit that stores a model as the difference from the one before, if there is one."""
    transaction = begin(repository, "main")
    before = transaction.entry(PATH)
    known = [] if before is None else [before]
    written = store_model(
        transaction.objects, tensors, known=known, against=DeltaOptions(before, codecs=None)
    )
    transaction.stage(PATH, written.entry)
    assert transaction.commit("save", author=ADA) is not None


def built() -> MemoryBackend:
    backend = MemoryBackend()
    save(create_repository(backend, drivers=DRIVERS, local=LocalState()), OLD)
    return backend


BACKEND = built()


def operations() -> list[tuple[str, str]]:
    """What saving does when nobody dies."""
    backend = WrappedBackend(copied(BACKEND))
    repository = opened(backend)
    repository.log.refresh()
    backend.operations.clear()
    save(repository, NEW)
    return [("begin", ""), *backend.operations]


PLACES = [at for at, (verb, _) in enumerate(operations()) if verb != "read"]


@pytest.mark.parametrize("at", sampled(PLACES, len(PLACES) // 5))
def test_a_model_is_as_before_or_as_after_when_its_writer_dies(at: int) -> None:
    store = copied(BACKEND)
    backend = CrashBackend(store, 10**9)
    repository = opened(backend)
    repository.log.refresh()
    backend.operations.clear()
    backend.die_after = at
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        save(repository, NEW)
    verify(store)
    found = model_at(opened(store)).load()
    expected = NEW if np.array_equal(found["w"], NEW["w"]) else OLD
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    if expected is OLD:
        save(opened(store), NEW)
        assert np.array_equal(model_at(opened(store))["w"], NEW["w"])


def test_the_saved_model_is_a_difference_whose_base_is_reachable_from_it() -> None:
    store = copied(BACKEND)
    save(opened(store), NEW)
    model = model_at(opened(store))
    members = model.packs.members.entries
    assert {(one.codec, one.depth) for one in members.values()} >= {("delta", 1), ("planes", 0)}
    verify(store)
