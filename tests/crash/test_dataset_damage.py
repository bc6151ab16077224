"""Whatever byte of a dataset is damaged, readers say so or still give the right rows."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Envelope, Kind, decode_object
from tests.support.builders.columns import MappedObjects
from tests.support.builders.datasets import same_rows
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import soaking
from tests.support.faults.damage import flipped
from tests.support.golden.dataset import CASES, Case
from tests.support.second_readers.comparison import ids_of

FLIPS = 60 if soaking() else 8  # for each case
MASKS = [*(1 << bit for bit in range(8)), 0xFF]
CHANGED = ["tiled", "tiled-shuffled", "deleted", "patched", "columns", "compacted", "leaves"]


class Remembering(MemoryObjects):
    """Finds every object under the name that it had, whatever its bytes are now."""

    def get(self, digest: Digest) -> Envelope:
        if digest not in self.stored:
            raise NotFoundError(f"no object {digest:.12}")
        return decode_object(self.stored[digest])


@cache
def _case(name: str) -> Case:
    return CASES[name]()


def _copy(dataset: StoredDataset, kind: type[MemoryObjects]) -> MemoryObjects:
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects)
    copy = kind()
    copy.stored, copy.links = dict(objects.stored), dict(objects.links)
    return copy


def _reached(dataset: StoredDataset) -> list[Digest]:
    """The objects that a dataset is made of, its root first."""
    objects = dataset.objects
    found = [dataset.digest]
    for digest in found:
        found += [link.digest for link in objects.get(digest).links if link.digest not in found]
    return found


def _places(dataset: StoredDataset, kinds: set[Kind] | None) -> list[tuple[Digest, int, int]]:
    """Objects, bytes in them and masks: as many of each kind."""
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects)
    chance = random.Random(1)
    digests = [
        digest
        for digest in _reached(dataset)
        if kinds is None or objects.links[digest].kind in kinds
    ]
    return [
        (digest, chance.randrange(len(objects.stored[digest])), chance.choice(MASKS))
        for digest in digests
        for _ in range(-(-FLIPS // len(digests)))
    ]


def _read(objects: MemoryObjects, digest: Digest) -> tuple[list[Any], list[Any]]:
    dataset = open_dataset(objects, digest)
    return list(dataset), ids_of(dataset)


def _is_right(objects: MemoryObjects, dataset: StoredDataset) -> bool:
    """Whether everything is as it was, or said to be damaged."""
    try:
        rows, ids = _read(objects, dataset.digest)
    except CorruptError:
        return True
    return same_rows(rows, list(dataset)) and ids == ids_of(dataset)


@pytest.mark.parametrize("kind", [MemoryObjects, MappedObjects], ids=["store", "mapped"])
@pytest.mark.parametrize("case", CHANGED)
def test_no_flipped_byte_of_a_changed_dataset_goes_unnoticed(
    case: str, kind: type[MemoryObjects]
) -> None:
    dataset = _case(case).dataset
    objects = _copy(dataset, kind)
    wrong = []
    for digest, at, mask in _places(dataset, None):
        whole = objects.stored[digest]
        objects.stored[digest] = flipped(whole, at, mask)
        if not _is_right(objects, dataset):
            wrong.append((digest, at, mask))
        objects.stored[digest] = whole
    assert wrong == []


@pytest.mark.parametrize("case", ["everything", *CHANGED])
def test_forged_metadata_is_refused_or_read_never_a_crash(case: str) -> None:
    """As a hostile store would have it: names fit the damage."""
    dataset = _case(case).dataset
    objects = _copy(dataset, Remembering)
    refused = 0
    places = _places(dataset, set(Kind) - {Kind.CHUNK})
    for digest, at, mask in places:
        whole = objects.stored[digest]
        objects.stored[digest] = flipped(whole, at, mask)
        try:
            _read(objects, dataset.digest)
        except Error:
            refused += 1
        objects.stored[digest] = whole
    assert 0 < refused <= len(places)
