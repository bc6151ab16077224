"""Writers beside collections without any grace: nothing that a ref leads to is lost."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import CommitExpired, NotFoundError
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, new_repository
from tests.support.effort import sampled, soaking
from tests.support.faults.collected_writers import CollectedWriter, CollectingBackend, collect

STEPS = 25 if soaking() else 12  # after each of them all is read


@pytest.mark.parametrize("seed", sampled(range(40), 1))
def test_a_collection_between_any_two_operations_of_writers_takes_nothing(seed: int) -> None:
    backend, chance = MemoryBackend(), random.Random(seed)
    commit_files(new_repository(backend), {"files/first": b"first"})
    collecting = CollectingBackend(backend, chance, share=0.1)
    writers = [
        CollectedWriter(open_repository(collecting, drivers={}), number, chance)
        for number in range(3)
    ]
    for _ in range(STEPS):
        chance.choice(writers).step()
        verify(backend)
    assert collecting.collections > STEPS / 3


def test_collections_beside_writers_at_once_take_nothing() -> None:
    backend = MemoryBackend()
    commit_files(new_repository(backend), {"files/first": b"first"})
    writers = [
        CollectedWriter(open_repository(backend, drivers={}), number, random.Random(number))
        for number in range(4)
    ]

    def work(writer: CollectedWriter) -> None:
        for at in range(12):
            writer.step()
            if at % 4 == writer.number:
                # A root may be dropped, and another collection take what it led to.
                with suppress(NotFoundError, CommitExpired):
                    collect(backend)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, writers))
    verify(backend)
