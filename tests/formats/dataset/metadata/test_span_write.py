"""What is small stands in the leaf while there is room; boundaries depend on fragments alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import widen_column
from tensorrepo.formats.dataset.metadata.boundaries import MAX_BYTES, MIN_BYTES
from tensorrepo.formats.dataset.metadata.deletions import pack_deletions
from tensorrepo.formats.dataset.metadata.manifest import INLINE_INDEX_BYTES
from tensorrepo.formats.dataset.metadata.row_ids import RUN
from tensorrepo.formats.dataset.metadata.span_write import Room, SpanWriter, cut
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.read import column_index, dataset_leaves
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.changed import edited, patched
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.dataset import SIGNALS, Making
from tests.support.second_readers.comparison import agrees


@pytest.fixture
def writer() -> Iterator[SpanWriter]:
    with ThreadPoolExecutor(1) as storers:
        yield SpanWriter(MemoryObjects(), storers, 1 << 20, lambda *_: None)


def _kinds(writer: SpanWriter) -> list[Kind]:
    objects = writer.objects
    assert isinstance(objects, MemoryObjects)
    return [link.kind for link in objects.links.values()]


@given(st.integers(), st.lists(st.integers(1, 200_000), max_size=60), st.sets(st.integers(0, 59)))
def test_every_fragment_is_in_one_run_of_bounded_size(
    seed: int, drawn: list[int], left_out: set[int]
) -> None:
    rng = random.Random(seed)
    uids = [rng.getrandbits(64) for _ in drawn]
    sizes = {at: size for at, size in enumerate(drawn) if at not in left_out}
    runs = cut(sizes, uids)
    assert [at for run in runs for at in run] == sorted(sizes)
    totals = [sum(sizes[at] for at in run) for run in runs]
    assert all(total <= MAX_BYTES for total in totals)
    # A run ends early only before one that would have taken it too far.
    assert all(total >= MIN_BYTES for total in totals[:-1])


@pytest.mark.parametrize(("payloads", "kinds"), [(4000, []), (100, [Kind.DELETION_MAP])])
def test_a_deletion_map_stands_in_the_leaf_while_there_is_room(
    writer: SpanWriter, payloads: int, kinds: list[Kind]
) -> None:
    room = Room(payloads)
    deletions = {3: pack_deletions(np.arange(200), 2000)}
    (span,) = writer.end_deletions(deletions, [0] * 9, room)
    assert (span.first_fragment, span.fragments) == (3, 1)
    assert _kinds(writer) == kinds
    assert isinstance(span.payload, memoryview) == (not kinds)
    assert room.payloads == payloads - (0 if kinds else memoryview(span.payload).nbytes)  # type: ignore[arg-type]  # inline


def test_what_is_large_is_an_object_whatever_room_there_is(writer: SpanWriter) -> None:
    runs = {0: np.zeros(INLINE_INDEX_BYTES // RUN.itemsize, RUN)}
    runs[0]["rows"] = 1
    writer.end_runs(runs, [0], Room(1 << 30))
    assert _kinds(writer) == [Kind.ROW_RUNS]


def test_what_cannot_be_stored_is_told_to_who_asks_for_it() -> None:
    class Full(MemoryObjects):
        def put(self, *_: Any, **__: Any) -> Any:
            raise StorageError("the store is full")

    with ThreadPoolExecutor(1) as storers:
        writer = SpanWriter(Full(), storers, 10, lambda *_: None)
        digest = writer.store_parts([b"chunk"])
        with pytest.raises(StorageError, match="full"):
            digest()
        with pytest.raises(StorageError, match="full"):  # while it waits for room
            writer.store_parts([b"another chunk"])


def test_patches_of_a_widened_column_stand_apart_from_those_before() -> None:
    made = Making(SIGNALS, [{"x": None, "n": at} for at in range(20)])
    made.append([{"x": None, "n": at} for at in range(20, 40)])
    column = made.dataset.schema.column("n")
    edit = FragmentEdit(patches={column.id: patched(column, [1], [100])})
    made.dataset = edited(made.objects, made.dataset, {0: edit})
    made.change(widen_column, "n", "int64")
    wide = made.dataset.schema.column("n")
    edit = FragmentEdit(patches={column.id: patched(wide, [1], [2**40])})
    dataset = edited(made.objects, made.dataset, {1: edit})
    ((leaf, _),) = dataset_leaves(dataset)
    assert [(span.first_fragment, span.fragments) for span in leaf.patches] == [(0, 1), (1, 1)]
    patches = column_index(dataset, "n").patches
    assert patches is not None
    assert [storage.dtype for storage in patches.pages.storages] == ["int64", "int32"]
    assert dataset["n"][[0, 1, 20, 21]].tolist() == [0, 100, 20, 2**40]
    assert agrees(made.objects, dataset)
