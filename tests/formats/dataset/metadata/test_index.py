"""A patch index says which rows get which values, and refuses to contradict itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.index import (
    BOUNDS,
    FRAGMENT_OF,
    INDEX_MAGIC,
    OFFSETS,
    PatchIndex,
    decode_patch_index,
    encode_index,
    encode_patch_index,
    index_of,
    patched_rows,
)
from tensorrepo.formats.dataset.metadata.manifest import decode_leaf
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.pages.sections import decode_sections
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Text
from tensorrepo.repo.errors import CorruptError
from tests.support.builders.changed import edited, patched
from tests.support.golden.dataset import SIGNALS, Making


def _made() -> PatchIndex:
    """Three pages: one of 2 values for fragment 0, one of 1 and one of 2 for fragment 1."""
    rows: Any = [{"x": np.full(40, at), "n": at} for at in range(10)]
    making = Making(SIGNALS, rows[:5])
    making.append(rows[5:])
    column = making.dataset.schema.column("n")
    first = edited(making.objects, making.dataset, {1: _patch(column, [4])})
    both = edited(making.objects, first, {0: _patch(column, [1, 3]), 1: _patch(column, [0, 4])})
    leaf = decode_leaf(both.root.leaves[-1].payload, "leaf")
    (span,) = leaf.patches
    assert isinstance(span.payload, memoryview)
    return decode_patch_index(span.payload, "patch")


def _patch(column: Any, offsets: list[int]) -> FragmentEdit:
    return FragmentEdit(patches={column.id: patched(column, offsets, offsets)})


PATCH = _made()


def _with_entries(patch: PatchIndex, name: str, values: list[int]) -> PatchIndex:
    column = patch.index.columns[0]
    entries = column.entries.copy()
    entries[name] = values
    return replace(patch, index=replace(patch.index, columns=(replace(column, entries=entries),)))


def test_pages_and_offsets_follow_fragments_in_the_order_in_which_they_were_set() -> None:
    assert PATCH.fragment.tolist() == [0, 1, 1]
    assert PATCH.offsets.tolist() == [1, 3, 4, 0, 4]
    assert PATCH.index.columns[0].entries["first_row"].tolist() == [0, 2, 3]


def test_patches_are_encoded_as_they_were() -> None:
    payload = encode_patch_index(PATCH)
    assert encode_patch_index(decode_patch_index(payload, "patch")) == payload


def test_rows_of_the_dataset_are_counted_from_their_fragments() -> None:
    assert patched_rows(PATCH, np.array([100, 200]), np.array([5, 5])).tolist() == [
        101,
        103,
        204,
        200,
        204,
    ]


def test_a_fragment_beyond_the_span_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="beyond"):
        patched_rows(PATCH, np.array([100]), np.array([5]))


def test_a_row_beyond_those_of_its_fragment_is_refused() -> None:
    with pytest.raises(CorruptError, match="beyond those of its fragment"):
        patched_rows(PATCH, np.array([100, 200]), np.array([5, 4]))


DAMAGES: dict[str, Callable[[], PatchIndex]] = {
    "fragments fall": lambda: replace(PATCH, fragment=np.array([1, 0, 0], np.uint32)),
    "offsets fall": lambda: replace(PATCH, offsets=np.array([3, 1, 4, 0, 4], np.uint32)),
    "an offset twice": lambda: replace(PATCH, offsets=np.array([3, 3, 4, 0, 4], np.uint32)),
    "an offset less": lambda: replace(PATCH, offsets=PATCH.offsets[:-1]),
    "a fragment less": lambda: replace(PATCH, fragment=PATCH.fragment[:-1]),
    "other counts": lambda: _with_entries(PATCH, "rows", [1, 2, 2]),
    "an empty page": lambda: _with_entries(PATCH, "rows", [5, 0, 0]),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_patches_that_contradict_themselves_are_corrupt(damage: str) -> None:
    with pytest.raises(CorruptError):
        decode_patch_index(encode_patch_index(DAMAGES[damage]()), "patch")


def test_a_patch_without_pages_is_corrupt() -> None:
    column = PATCH.index.columns[0]
    nothing = replace(
        column, entries=column.entries[:0], tags=column.tags[:0], chunk=column.chunk[:0]
    )
    payload = encode_index(replace(PATCH.index, columns=(nothing,)))
    with pytest.raises(CorruptError, match="has pages"):
        decode_patch_index(payload, "patch")


def test_a_patch_of_two_columns_is_corrupt() -> None:
    twice = replace(PATCH.index, columns=PATCH.index.columns * 2)
    more = {FRAGMENT_OF: np.repeat(PATCH.fragment, 2), OFFSETS: np.repeat(PATCH.offsets, 2)}
    with pytest.raises(CorruptError, match="one column"):
        decode_patch_index(encode_index(twice, more), "patch")


def test_an_index_of_before_there_were_bounds_of_text_is_read() -> None:
    making = Making(Schema((Column("name", Text()),)), [{"name": "ann"}, {"name": "bob"}])
    leaf = decode_leaf(making.dataset.root.leaves[0].payload, "leaf")
    (span,) = leaf.indexes
    assert isinstance(span.payload, memoryview)
    sections = decode_sections(INDEX_MAGIC, span.payload, "index")
    assert sections.pop(BOUNDS)
    (column,) = index_of(sections, "index").columns
    assert column.bounds["flags"].tolist() == [0]


def test_sections_of_another_version_are_corrupt() -> None:
    more = {FRAGMENT_OF: PATCH.fragment, OFFSETS: PATCH.offsets, 18: np.ones(1, np.uint8)}
    with pytest.raises(CorruptError, match="18"):
        decode_patch_index(encode_index(PATCH.index, more), "patch")
