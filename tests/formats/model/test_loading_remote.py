"""Tensors come as they are there, within a budget, and small ones from afar in few requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.read.loading import as_done
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

RNG = np.random.default_rng(3)
SMALL = {f"{at}.bias": RNG.normal(size=1000 + at).astype("f4") for at in range(40)}
LARGE = {f"{at}.weight": RNG.normal(size=(300, 500)).astype("f4") for at in range(4)}


class Read:
    """A read that is done when a test says so."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.tell: Callable[[], None] | None = None

    def when_done(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def end(self) -> None:
        assert self.tell is not None
        self.tell()


class Begun:
    """Reads, and how many of them were begun."""

    def __init__(self, reads: list[Read], ended: tuple[int, ...] = ()) -> None:
        self.reads, self.ended, self.count = reads, ended, 0

    def __iter__(self) -> Iterator[Read]:
        for at, read in enumerate(self.reads):
            self.count += 1
            yield read
            if at in self.ended:
                read.end()


class Counting(ObjectStore):
    """Counts the ranges that are asked for."""

    ranges = 0

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        self.ranges += 1
        return super().read_range(link, start, stop)


def afar(tensors: dict[str, Any], **options: Any) -> tuple[MemoryBackend, StoredModel]:
    """A model where nothing is mapped."""
    backend = MemoryBackend()
    writer = ObjectWriter(ObjectStore(backend), ())
    entry = write_model(writer, tensors, **options)
    writer.flush()
    return backend, open_model(Counting(backend), entry)


def ranges_of(model: StoredModel) -> int:
    assert isinstance(model.objects, Counting)
    return model.objects.ranges


def test_what_is_done_first_comes_first() -> None:
    slow, fast = Read(10), Read(10)
    found = as_done(Begun([slow, fast, Read(10)], ended=(1,)), limit_bytes=25)
    assert next(found) is fast
    slow.end()
    assert next(found) is slow


def test_no_more_is_begun_than_fits_into_the_budget() -> None:
    begun = Begun([Read(10) for _ in range(9)])
    begun.reads[0].when_done = lambda tell: tell()  # type: ignore[method-assign]
    next(as_done(begun, limit_bytes=30))
    assert begun.count <= 4


def test_a_read_beyond_the_budget_comes_alone() -> None:
    begun = Begun([Read(10), Read(10)])
    for read in begun.reads:
        read.when_done = lambda tell: tell()  # type: ignore[method-assign]
    assert list(as_done(begun, limit_bytes=5)) == begun.reads


def test_small_tensors_come_from_afar_in_few_requests() -> None:
    _, model = afar({**SMALL, **LARGE})
    found = model.load()
    assert all(np.array_equal(found[name], value) for name, value in (SMALL | LARGE).items())
    assert ranges_of(model) <= 2 + len(LARGE) + 2  # directories, large ones, small ones


def test_what_they_are_the_difference_from_comes_with_them() -> None:
    backend, base = afar(SMALL)
    writer = ObjectWriter(ObjectStore(backend), ())
    tuned = {name: value + np.float32(1e-6) * RNG.random(value.size, "f4") for name, value in
             SMALL.items()}  # fmt: skip
    entry = write_model(writer, tuned, known=[base.entry])
    writer.flush()
    model = open_model(Counting(backend), entry)
    found = model.load()
    assert all(np.array_equal(found[name], value) for name, value in tuned.items())
    assert ranges_of(model) <= 4


def test_nothing_fetched_stays_when_a_load_ends_early() -> None:
    _, model = afar(SMALL)
    for _ in model.iter_tensors(model.keys()):
        break
    assert not model.packs.members._kept


def test_a_damaged_pack_is_named_with_its_tensor() -> None:
    backend, model = afar(SMALL)
    (pack,) = model.packs.members.packs
    key = f"objects/{pack.digest[:2]}/{pack.digest[2:]}"
    damaged = bytearray(backend.read(key))
    damaged[4096 + 100] ^= 1
    backend.overwrite(key, (bytes(damaged),))
    with pytest.raises(CorruptError, match="tensor '"):
        model.load()
