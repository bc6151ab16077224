from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend, Guarantee
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.probe import probe
from tensorrepo.repo.errors import NotFoundError, StorageError, UnsupportedError
from tensorrepo.repo.ids import Buffer
from tests.support.faults.backends import WrappedBackend
from tests.support.faults.stores import IgnoresTheCondition


class LooksThenWrites(WrappedBackend):
    """Creates like most file systems do: with a gap between the look and the write."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.looked = threading.Barrier(8)

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if self.inner.size(key) is not None:
            return False
        self.looked.wait(10)
        self.inner.overwrite(key, parts)
        return True


class ShowsLate(WrappedBackend):
    def read(self, key: str) -> bytes:
        raise NotFoundError(f"{key} is not there yet")


class Full(WrappedBackend):
    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        raise StorageError("no space")


@pytest.mark.parametrize("make", [LooksThenWrites, IgnoresTheCondition])
def test_a_store_with_two_winners_is_for_one_writer(make: Callable[[], Backend]) -> None:
    backend = make()
    assert backend.guarantee is Guarantee.ATOMIC
    assert probe(backend) is Guarantee.SINGLE_WRITER


def test_a_store_that_shows_writes_late_cannot_hold_a_repository() -> None:
    with pytest.raises(UnsupportedError, match="does not show what was just written"):
        probe(ShowsLate(MemoryBackend()))


def test_a_store_that_fails_is_no_single_writer_but_an_error() -> None:
    with pytest.raises(StorageError, match="no space"):
        probe(Full(MemoryBackend()))


def test_the_probe_leaves_nothing_behind_and_nothing_alone() -> None:
    backend = MemoryBackend()
    backend.create("repo.json", (b"{}",))
    assert probe(backend) is Guarantee.ATOMIC
    assert [stored.key for stored in backend.list("")] == ["repo.json"]


class CountsCreates(LocalBackend):
    creates = 0

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self.creates += 1
        return super().create(key, parts)


@pytest.mark.parametrize(("forced", "creates"), [(None, 2), (Guarantee.ATOMIC, 3 * 9)])
def test_writers_race_for_a_new_repository_where_the_file_system_is_not_known(
    tmp_path: Path, forced: Guarantee | None, creates: int
) -> None:
    backend = CountsCreates(tmp_path / "store", guarantee=forced)
    assert probe(backend, races_ours=False) is Guarantee.ATOMIC
    assert backend.creates == creates
