"""Roots, leaves and page indexes: read back, refused when newer, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.chunk import decode_footer
from tensorrepo.formats.dataset.metadata.deletions import decode_deletion_map
from tensorrepo.formats.dataset.metadata.index import (
    IndexPart,
    decode_index,
    decode_patch_index,
    encode_index,
    join_indexes,
)
from tensorrepo.formats.dataset.metadata.manifest import (
    FRAGMENT,
    FRAGMENTS,
    LEAF_MAGIC,
    NO_GROUP,
    FragmentSpan,
    Leaf,
    decode_leaf,
    decode_root,
    encode_leaf,
    encode_root,
)
from tensorrepo.formats.dataset.metadata.row_ids import decode_row_runs
from tensorrepo.formats.dataset.pages.page import PAGE_TILES
from tensorrepo.formats.dataset.pages.sections import decode_sections, encode_sections
from tensorrepo.formats.dataset.read import column_index, open_dataset
from tensorrepo.formats.dataset.schema.schema import Bytes, ColumnLayout, Schema, Storage, Tensor
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.dataset import CASES

SCHEMA = Schema.of({"x": Tensor("float32", (None, 2)), "b": Bytes(), "n": "int16"})
ROWS: dict[str, Any] = {
    "x": [np.ones((at, 2), np.float32) for at in range(9)],
    "b": [bytes([at]) * 99 for at in range(9)],
    "n": list(range(9)),
}
OBJECTS = MemoryObjects()
DATASET = stored(OBJECTS, SCHEMA, [ROWS])
ROOT = encode_root(DATASET.root)
LEAF = DATASET.root.leaves[0].payload
INDEX = bytes(decode_leaf(LEAF, "leaf").spans[0].payload)  # type: ignore[arg-type]  # inline
CHUNKED = stored(MemoryObjects(), SCHEMA, [{**ROWS, "b": [bytes(9000)] * 9}])
CHUNK = next(
    CHUNKED.objects.get(link.digest).payload
    for link in CHUNKED.links.values()
    if link.kind is Kind.CHUNK
)


def _part(case: str, family: str) -> bytes:
    """The payload of the first span of a family in the last leaf of a golden dataset."""
    leaf = decode_leaf(CASES[case]().dataset.root.leaves[-1].payload, "leaf")
    return bytes(getattr(leaf, family)[0].payload)


DECODERS: dict[str, tuple[bytes, Callable[[Any], Any]]] = {
    "deletion map": (
        _part("deleted", "deletions"),
        lambda payload: decode_deletion_map(payload, "deletion map"),
    ),
    "patch": (_part("patched", "patches"), lambda payload: decode_patch_index(payload, "patch")),
    "row runs": (_part("compacted", "runs"), lambda payload: decode_row_runs(payload, "row runs")),
    "root": (ROOT, decode_root),
    "leaf": (LEAF, lambda payload: decode_leaf(payload, "leaf")),
    "index": (INDEX, lambda payload: decode_index(payload, "page index")),
    "footer": (bytes(CHUNK[-2000:]), decode_footer),
}


@pytest.mark.parametrize("name", sorted(DECODERS))
@given(data=st.data())
def test_damaged_payloads_are_refused_or_read_never_a_crash(name: str, data: st.DataObject) -> None:
    payload, decode = DECODERS[name]
    damaged = bytearray(payload)
    for at in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=5)):
        damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    try:
        decode(bytes(damaged[:cut]))
    except Error:
        return


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_payloads_cut_short_are_refused(name: str) -> None:
    payload, decode = DECODERS[name]
    for size in range(0, len(payload), 17):
        with pytest.raises(Error):
            decode(payload[:size])


def test_parts_are_encoded_as_they_were() -> None:
    assert encode_root(decode_root(ROOT)) == ROOT
    assert encode_leaf(decode_leaf(LEAF, "leaf")) == LEAF
    assert encode_index(decode_index(INDEX, "index")) == INDEX


def test_sections_of_a_later_version_are_unsupported() -> None:
    sections = {
        number: np.frombuffer(data, np.uint8)
        for number, data in decode_sections(LEAF_MAGIC, LEAF, "leaf").items()
    }
    newer = encode_sections(LEAF_MAGIC, sections | {99: np.ones(4, np.uint8)})
    with pytest.raises(UnsupportedError, match="99"):
        decode_leaf(newer, "leaf")


def test_a_fragment_counts_its_deleted_rows_in_a_map() -> None:
    leaf = decode_leaf(LEAF, "leaf")
    fragments = leaf.fragments.copy()
    fragments["deleted"] = 1
    with pytest.raises(CorruptError, match="cannot be"):
        decode_leaf(encode_leaf(replace(leaf, fragments=fragments)), "leaf")


@pytest.mark.parametrize("version", [1])
def test_a_root_of_an_unreleased_version_says_what_to_do(version: int) -> None:
    form = msgspec.msgpack.decode(ROOT) | {"version": version}
    with pytest.raises(UnsupportedError, match="Write the dataset anew"):
        decode_root(msgspec.msgpack.encode(form))


@pytest.mark.parametrize("change", [{"version": 0}, {"version": 3}, {"features": ["tiles"]}])
def test_a_root_of_a_later_version_is_unsupported(change: dict[str, Any]) -> None:
    form = msgspec.msgpack.decode(ROOT) | change
    with pytest.raises(UnsupportedError, match="Update tensorrepo"):
        decode_root(msgspec.msgpack.encode(form))


def test_spans_may_leave_fragments_out() -> None:
    leaf = _three_fragments()
    with_gaps = replace(leaf, indexes=(_span("ab", 0, 1), _span("ab", 2, 1), _span("cd", 1, 1)))
    found = decode_leaf(encode_leaf(with_gaps), "leaf")
    assert [(s.group, s.first_fragment, s.stop_fragment) for s in found.indexes] == [
        ("00000000000000ab", 0, 1),
        ("00000000000000ab", 2, 3),
        ("00000000000000cd", 1, 2),
    ]


@pytest.mark.parametrize("family", ["indexes", "deletions", "patches", "runs"])
@pytest.mark.parametrize(
    "places", [[(1, 1), (0, 1)], [(0, 2), (1, 1)], [(0, 0)], [(2, 2)], [(0, 2**32 - 1)]]
)
def test_spans_that_overlap_or_go_beyond_are_corrupt(
    family: str, places: list[tuple[int, int]]
) -> None:
    spans = tuple(_span(NO_GROUP, *place) for place in places)
    leaf = replace(_three_fragments(), **{family: spans})  # type: ignore[arg-type]  # of all four
    with pytest.raises(CorruptError, match="spans"):
        decode_leaf(encode_leaf(leaf), "leaf")


@pytest.mark.parametrize(
    ("field", "value"), [("deleted", 4), ("rows", 0), ("flags", 8), ("flags", 1), ("reserved", 1)]
)
def test_fragments_that_cannot_be_are_corrupt(field: str, value: int) -> None:
    leaf = _three_fragments()
    leaf.fragments[field][1] = value
    with pytest.raises(CorruptError, match="fragment"):
        decode_leaf(encode_leaf(leaf), "leaf")


def _three_fragments() -> Leaf:
    fragments = np.zeros(3, FRAGMENT)
    fragments["uid"], fragments["rows"] = [1, 2, 3], 3
    return Leaf(fragments, ())


def _span(group: str, first: int, fragments: int) -> FragmentSpan:
    return FragmentSpan(group.zfill(16), first, fragments, memoryview(b"payload"))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 8},
        {"deleted": 1},
        {"groups": []},
        {"statistics": []},
        {"schema": {}},
        {"leaves": "x"},
        {"extra": 1},
    ],
)
def test_a_root_that_contradicts_itself_is_corrupt(change: dict[str, Any]) -> None:
    form = msgspec.msgpack.decode(ROOT) | change
    with pytest.raises(CorruptError):
        decode_root(msgspec.msgpack.encode(form))


def test_a_leaf_that_disagrees_with_its_root_is_corrupt() -> None:
    objects = MemoryObjects()
    leaf = decode_leaf(LEAF, "leaf")
    fragments = leaf.fragments.copy()
    fragments["rows"] = 8
    payload = encode_leaf(replace(leaf, fragments=fragments))
    entry = msgspec.structs.replace(DATASET.root.leaves[0], payload=payload)
    root = replace(DATASET.root, leaves=(entry,))
    link = objects.put(Kind.DATASET, encode_root(root))
    with pytest.raises(CorruptError, match="other counts"):
        column_index(open_dataset(objects, link.digest), "n")


def test_pages_that_do_not_cover_their_fragments_are_corrupt() -> None:
    objects = MemoryObjects()
    leaf = decode_leaf(LEAF, "leaf")
    fragments = leaf.fragments.copy()
    fragments["rows"] = 8
    payload = encode_leaf(replace(leaf, fragments=fragments))
    entry = msgspec.structs.replace(DATASET.root.leaves[0], payload=payload, rows=8)
    root = replace(DATASET.root, leaves=(entry,), rows=8)
    link = objects.put(Kind.DATASET, encode_root(root))
    with pytest.raises(CorruptError, match="do not cover fragments"):
        column_index(open_dataset(objects, link.digest), "n")


def test_another_kind_of_object_is_no_dataset() -> None:
    link = OBJECTS.put(Kind.BLOB, b"hello")
    with pytest.raises(InvalidInputError, match="is a blob, not a dataset"):
        open_dataset(OBJECTS, link.digest)


def test_a_root_links_what_stands_outside_it_and_no_more() -> None:
    assert OBJECTS.get(DATASET.digest).links == ()
    kinds = {link.kind for link in CHUNKED.objects.get(CHUNKED.digest).links}
    assert kinds == {Kind.CHUNK}
    assert FRAGMENTS in decode_sections(LEAF_MAGIC, CHUNKED.root.leaves[0].payload, "leaf")


def test_a_column_of_which_some_pages_are_tiled_is_corrupt() -> None:
    index = decode_index(INDEX, "page index")
    column = index.columns[0]
    tiled = Storage(ColumnLayout.TILED, column.storage.dtype, (None,), (2,))
    rows = np.array([int(column.entries["rows"].sum())], np.uint32)
    with pytest.raises(CorruptError, match="tiled"):
        join_indexes(column.id, tiled, [IndexPart(index, {}, rows)])


def test_a_table_of_tiles_in_a_column_without_tiles_is_corrupt() -> None:
    index = decode_index(INDEX, "page index")
    entries = index.columns[0].entries.copy()
    entries["codec"] = PAGE_TILES
    columns = (replace(index.columns[0], entries=entries), *index.columns[1:])
    with pytest.raises(CorruptError, match="table of tiles"):
        decode_index(encode_index(replace(index, columns=columns)), "page index")
