"""Fragments change in place: what is untouched is linked, and every row is what was said last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import add_column
from tensorrepo.formats.dataset.metadata import span_write, tree_edit
from tensorrepo.formats.dataset.metadata.boundaries import IndexParts
from tensorrepo.formats.dataset.metadata.deletions import pack_deletions
from tensorrepo.formats.dataset.metadata.manifest import HAS_DELETIONS, HAS_PATCHES, Leaf
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    dataset_leaves,
    fragment_records,
)
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tests.support.builders.changed import edited, patched, waiting, without
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples
from tests.support.golden.dataset import Making, small_cuts
from tests.support.second_readers.comparison import agrees

SCHEMA = Schema.of({"n": "int32", "m": "int16", "x": Tensor("uint8", (5000,))})
ROWS = 3  # of each fragment


def _row(at: int) -> dict[str, Any]:
    return {"n": at, "m": -at, "x": np.full(5000, at, np.uint8)}


@cache
def _making() -> Making:
    """Forty fragments in several leaves, each with several page indexes, and a column that has no
    pages.
    """
    making = Making(SCHEMA, [_row(at) for at in range(ROWS)])
    for first in range(ROWS, 40 * ROWS, ROWS):
        making.append([_row(at) for at in range(first, first + ROWS)])
    making.change(add_column, Column("late", Scalar("int8"), default=7))
    assert len(making.dataset.root.leaves) > 2
    return making


@pytest.fixture
def made() -> Iterator[Making]:
    with small_cuts():
        yield _making()


def _new_kinds(making: Making, before: set[str]) -> list[str]:
    links = making.objects.links
    return sorted(links[digest].kind.label for digest in links.keys() - before)


def _edit(making: Making, edits: Mapping[int, FragmentEdit]) -> tuple[StoredDataset, list[str]]:
    """The changed dataset, and which kinds of objects were stored for it."""
    before = set(making.objects.stored)
    changed = edited(making.objects, making.dataset, edits)
    return changed, _new_kinds(making, before)


def _pages(dataset: StoredDataset, name: str, values: Any) -> FragmentEdit:
    column = dataset.schema.column(name)
    return FragmentEdit(pages={column.id: waiting(column, values)})


def _leaves(dataset: StoredDataset) -> list[Leaf]:
    return [leaf for leaf, _ in dataset_leaves(dataset)]


def _payloads(leaf: Leaf) -> set[Any]:
    spans = leaf.spans
    return {bytes(s.payload) if isinstance(s.payload, memoryview) else s.payload for s in spans}


def test_a_deletion_writes_its_leaf_and_the_root_alone(made: Making) -> None:
    before = set(made.objects.stored)
    changed = without(made.objects, made.dataset, [1])
    assert _new_kinds(made, before) == ["dataset", "leaf"]
    assert changed.root.leaves[1:] == made.dataset.root.leaves[1:]
    assert changed["n"][:].tolist() == [0, *range(2, 120)]
    assert agrees(made.objects, changed)


def test_new_pages_leave_other_columns_and_other_indexes_as_they_are(made: Making) -> None:
    changed, kinds = _edit(made, {1: _pages(made.dataset, "n", [10, 11, 12])})
    old, new = _leaves(made.dataset)[0], _leaves(changed)[0]
    assert set(kinds) <= {"dataset", "leaf", "page index", "chunk"}
    assert len(_payloads(new) - _payloads(old)) == 1
    assert changed["n"][:8].tolist() == [0, 1, 2, 10, 11, 12, 6, 7]
    assert changed["m"][:8].tolist() == [0, -1, -2, -3, -4, -5, -6, -7]
    tags = [column_index(each, "m").tags.tobytes() for each in (changed, made.dataset)]
    assert tags[0] == tags[1]
    assert agrees(made.objects, changed)


def test_edits_of_several_leaves_reach_their_fragments(made: Making) -> None:
    values = {at: [at, at + 1, at + 2] for at in (0, 5, 6, 20, 39)}
    changed, _ = _edit(made, {at: _pages(made.dataset, "m", each) for at, each in values.items()})
    expected = [-at for at in range(120)]
    for at, each in values.items():
        expected[ROWS * at : ROWS * at + ROWS] = each
    assert changed["m"][:].tolist() == expected
    assert agrees(made.objects, changed)


@pytest.mark.soak
@pytest.mark.parametrize("places", [[0], [4], [0, 1, 7], list(range(40))])
def test_pages_come_where_rows_had_the_default(made: Making, places: list[int]) -> None:
    edits = {at: _pages(made.dataset, "late", [1, 2, 3]) for at in places}
    changed, _ = _edit(made, edits)
    expected = np.full((40, ROWS), 7)
    expected[places] = [1, 2, 3]
    assert changed["late"][:].tolist() == expected.reshape(-1).tolist()
    assert agrees(made.objects, changed)


def test_patches_of_other_columns_stay_where_they_are(made: Making) -> None:
    n, m = (made.dataset.schema.column(name) for name in ("n", "m"))
    first, _ = _edit(
        made,
        {
            2: FragmentEdit(patches={n.id: patched(n, [0, 2], [100, 102])}),
            3: FragmentEdit(patches={m.id: patched(m, [1], [1000])}),
        },
    )
    second = edited(made.objects, first, {2: _pages(first, "m", [1, 2, 3])})
    assert first["n"][5:10].tolist() == [5, 100, 7, 102, 9]
    assert second["n"][5:10].tolist() == [5, 100, 7, 102, 9]
    assert second["m"][5:12].tolist() == [-5, 1, 2, 3, -9, 1000, -11]
    assert agrees(made.objects, second)


def test_new_pages_take_the_place_of_patches(made: Making) -> None:
    column = made.dataset.schema.column("n")
    first, _ = _edit(made, {2: FragmentEdit(patches={column.id: patched(column, [1], [100])})})
    second = edited(made.objects, first, {2: _pages(first, "n", [1, 2, 3])})
    assert second["n"][5:10].tolist() == [5, 1, 2, 3, 9]
    assert column_index(second, "n").patches is None
    before = {entry.id: entry for entry in made.dataset.root.statistics}
    after = {entry.id: entry for entry in second.root.statistics}
    assert after[column.id].stored_bytes == before[column.id].stored_bytes


def test_later_patches_lie_over_earlier_ones(made: Making) -> None:
    column = made.dataset.schema.column("n")
    dataset = made.dataset
    for offsets, values in (([0, 1], [100, 101]), ([1, 2], [201, 202]), ([1], [301])):
        one = FragmentEdit(patches={column.id: patched(column, offsets, values)})
        dataset = edited(made.objects, dataset, {5: one})
    assert dataset["n"][15:18].tolist() == [100, 301, 202]
    assert int(fragment_records(dataset)["flags"][5]) == HAS_PATCHES
    assert agrees(made.objects, dataset)


def test_an_edit_that_changes_nothing_gives_the_same_dataset(made: Making) -> None:
    changed, kinds = _edit(made, {4: FragmentEdit()})
    assert changed.digest == made.dataset.digest
    assert kinds == []


def test_a_small_dataset_that_is_changed_is_one_object() -> None:
    making = Making(Schema.of({"n": "int32"}), [{"n": at} for at in range(20)])
    column = making.dataset.schema.column("n")
    edit = FragmentEdit(
        pack_deletions(np.array([3]), 20), patches={column.id: patched(column, [5], [50])}
    )
    changed, kinds = _edit(making, {0: edit})
    assert kinds == ["dataset"]
    assert changed.root.links == ()
    assert int(fragment_records(changed)["flags"][0]) == HAS_DELETIONS | HAS_PATCHES


def test_an_index_with_few_inline_pages_is_taken_apart_in_few_parts() -> None:
    """And put together as if each fragment were alone, also where boundaries fall elsewhere."""
    texts = [np.random.default_rng(at).bytes(10_000).hex() for at in range(31)]
    making = Making(Schema.of({"text": Text()}), [{"text": texts[0]}])
    for text in (*texts[1:30], "short"):
        making.append([{"text": text}])
    edits = {at: _pages(making.dataset, "text", [texts[30]]) for at in (7, 21)}
    taken = IndexParts.of
    with patch.object(IndexParts, "of", autospec=True, side_effect=taken) as of:
        changed, _ = _edit(making, edits)
    assert of.call_count < 10
    with patch.object(IndexParts, "runs", _one_by_one):
        assert _edit(making, edits)[0].digest == changed.digest
        with small_cuts():
            apart = _edit(making, edits)[0]
    with small_cuts():
        assert _edit(making, edits)[0].digest == apart.digest != changed.digest


def _one_by_one(_: IndexParts, start: int, stop: int) -> Iterator[range]:
    return (range(at, at + 1) for at in range(start, stop))


# ------------------------------------------------------------------------------ any edits

NAMES = ("n", "m", "late", "text")


@dataclass
class Written:
    """A dataset of some fragments, and the rows that it has, deleted ones marked."""

    making: Making
    counts: list[int]
    rows: list[dict[str, Any]]
    dead: set[int] = field(default_factory=set)

    @property
    def objects(self) -> MemoryObjects:
        return self.making.objects


def _written(counts: list[int]) -> Written:
    schema = Schema((*SCHEMA.columns[:2], Column("text", Text(), nullable=True)))
    rows = [{"n": at, "m": -at, "text": f"{at}"} for at in range(sum(counts))]
    making = Making(schema, rows[: counts[0]])
    for at in range(1, len(counts)):
        first = sum(counts[:at])
        making.append(rows[first : first + counts[at]])
    making.change(add_column, Column("late", Scalar("int8"), default=7))
    return Written(making, counts, [row | {"late": 7} for row in rows])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**31), 2**31 - 1),
    "m": st.integers(-(2**15), 2**15 - 1),
    "late": st.integers(-128, 127),
    "text": st.none() | st.text("aé", max_size=9),
}


def _draw_edit(data: st.DataObject, written: Written, at: int) -> FragmentEdit:
    """An edit of one fragment; the model follows it."""
    first, count = sum(written.counts[:at]), written.counts[at]
    schema = written.making.dataset.schema
    pages, patches, deletions = {}, {}, None
    for name in data.draw(st.sets(st.sampled_from(NAMES))):
        column = schema.column(name)
        some = st.sets(st.integers(0, count - 1), min_size=1).map(sorted)
        offsets = data.draw(st.just(list(range(count))) | some)
        new = data.draw(st.lists(VALUES[name], min_size=len(offsets), max_size=len(offsets)))
        for offset, value in zip(offsets, new, strict=True):
            written.rows[first + offset][name] = value
        if len(offsets) == count:
            pages[column.id] = waiting(column, new)
        else:
            patches[column.id] = patched(column, offsets, new)
    if data.draw(st.booleans()):
        dead = {row - first for row in written.dead if first <= row < first + count}
        dead |= data.draw(st.sets(st.integers(0, count - 1), min_size=1))
        written.dead |= {first + offset for offset in dead}
        deletions = pack_deletions(np.array(sorted(dead)), count)
    return FragmentEdit(deletions, pages, patches)


@settings(max_examples=examples(8))
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=14),
    st.sampled_from([0, 64, 300, 48 << 10]),
    st.data(),
)
def test_any_edits_give_the_rows_that_were_said_last(
    counts: list[int], inline_bytes: int, data: st.DataObject
) -> None:
    with (
        small_cuts(),
        patch.object(span_write, "INLINE_INDEX_BYTES", inline_bytes),
        patch.object(tree_edit, "INLINE_DATA_BYTES", inline_bytes),
    ):
        written = _written(counts)
        dataset = written.making.dataset
        for _ in range(data.draw(st.integers(1, 3))):
            places = sorted(data.draw(st.sets(st.integers(0, len(counts) - 1), min_size=1)))
            edits = {at: _draw_edit(data, written, at) for at in places}
            dataset = edited(written.objects, dataset, edits)
    expected = [row for at, row in enumerate(written.rows) if at not in written.dead]
    assert [
        {name: value if name == "text" else int(value) for name, value in row.items()}
        for row in dataset
    ] == expected
    assert agrees(written.objects, dataset)
