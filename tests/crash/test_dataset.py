"""Whenever somebody dies who changes a dataset, it is as it was or as it should be, whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import add_column
from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Schema, Tensor
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
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
from tensorrepo.repo.history.trees import Entry, lookup
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.datasets import same_rows
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import ADA
from tests.support.effort import check_each, sampled
from tests.support.faults.backends import Crash, CrashBackend, WrappedBackend

PATH = "datasets/d"
DRIVERS: Any = {Kind.DATASET: DatasetMergeDriver()}
SCHEMA = Schema.of({"n": "int32", "x": Tensor("uint8", (400,)), "b": Bytes()})
ROWS = [{"n": at, "x": np.full(400, at, np.uint8), "b": bytes([at]) * 900} for at in range(40)]


def opened(backend: Backend) -> RepositoryCore:
    return open_repository(backend, drivers=DRIVERS)


def dataset_at(repository: RepositoryCore, branch: str = "main") -> StoredDataset:
    commit = repository.log.refresh().state.refs[f"heads/{branch}"]
    entry = lookup(repository.objects, tree_of(repository.objects, commit), PATH)
    assert entry is not None
    return open_dataset(repository.objects, entry.digest)


def change_dataset(
    repository: RepositoryCore, change: Callable[[Any, StoredDataset], ObjectLink]
) -> None:
    """One commit that changes the dataset."""
    transaction = begin(repository, "main")
    link = change(transaction.objects, dataset_at(repository))
    transaction.stage(PATH, Entry(Kind.DATASET, link.digest))
    assert transaction.commit("change", author=ADA) is not None


@cache
def built() -> MemoryBackend:
    """Two appends: chunks, page indexes and fragments of their own."""
    backend = MemoryBackend()
    repository = create_repository(backend, drivers=DRIVERS, local=LocalState())
    base = None
    for at in range(2):
        transaction = begin(repository, "main")
        rows = ROWS[20 * at : 20 * at + 20]
        uids = random.Random(at)
        link = write_dataset(transaction.objects, SCHEMA, [rows], base=base, rng=uids)
        transaction.stage(PATH, Entry(Kind.DATASET, link.digest))
        assert transaction.commit("rows", author=ADA) is not None
        base = dataset_at(repository)
    return backend


# Each of these is one change of the dataset.
CHANGES: dict[str, Callable[[Any, StoredDataset], ObjectLink]] = {
    "append": lambda objects, dataset: write_dataset(
        objects, SCHEMA, [ROWS[:5]], base=dataset, rng=random.Random(7)
    ),
    "delete": lambda objects, dataset: delete_rows(objects, dataset, [1, 30]),
    "patch": lambda objects, dataset: update_rows(objects, dataset, [3], {"x": [np.zeros(400)]}),
    "replace": lambda objects, dataset: update_rows(objects, dataset, "n < 15", {"b": b"same"}),
    "add a column": lambda objects, dataset: add_column(
        objects, dataset, Column("y", Scalar("float32")), np.arange(40, dtype=np.float32)
    ),
    "compact": lambda objects, dataset: compact_dataset(
        objects, dataset, everything=True, rng=random.Random(8)
    ),
}


@cache
def before() -> list[Any]:
    """Rows before any change."""
    return list(dataset_at(opened(built())))


@cache
def whole(change: str) -> tuple[list[tuple[str, str]], StoredDataset]:
    """What a change does when nobody dies, and the dataset that comes of it."""
    backend = WrappedBackend(copied(built()))
    repository = opened(backend)
    repository.log.refresh()
    backend.operations.clear()
    change_dataset(repository, CHANGES[change])
    return list(backend.operations), dataset_at(opened(backend))


def places() -> list[tuple[str, int]]:
    """Changes, each with the operations of its store before which somebody may die."""
    return [
        (change, at)
        for change in CHANGES
        for at, (verb, _) in enumerate([("begin", ""), *whole(change)[0]])
        if verb != "read"
    ]


def test_a_dataset_is_as_before_or_as_after_when_its_writer_dies() -> None:
    every = places()
    check_each(sampled(every, len(every) // 5), _dies_at)


def _dies_at(place: tuple[str, int]) -> None:
    change, at = place
    store = copied(built())
    backend = CrashBackend(store, 10**9)
    repository = opened(backend)
    repository.log.refresh()
    backend.operations.clear()
    backend.die_after = at
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        change_dataset(repository, CHANGES[change])
    verify(store)
    after = whole(change)[1]
    found = dataset_at(opened(store))
    is_done = found.digest == after.digest
    assert same_rows(list(found), list(after) if is_done else before())
    if not is_done:
        change_dataset(opened(store), CHANGES[change])
        assert dataset_at(opened(store)).digest == after.digest


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_the_old_version_is_there_after_a_change(change: str) -> None:
    repository = opened(copied(built()))
    old = dataset_at(repository).digest
    change_dataset(repository, CHANGES[change])
    assert dataset_at(repository).digest != old
    assert same_rows(list(open_dataset(repository.objects, old)), before())
