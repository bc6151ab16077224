"""What both sides did to a dataset is kept; what contradicts is a conflict that names it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import add_column, set_properties
from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Image, Scalar, Schema, Tensor
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples, sampled_product
from tests.support.reference.merge import merge_versions, version_of
from tests.support.reference.merge_steps import base_dataset, rows, step

SCHEMA = Schema.of({"n": "int64", "b": Bytes()})


def _rows(start: int, count: int, width: int = 3) -> dict[str, Any]:
    return {
        "n": list(range(start, start + count)),
        "b": [bytes([at % 256]) * width for at in range(start, start + count)],
    }


def _entry(dataset: StoredDataset) -> Entry:
    return Entry(Kind.DATASET, dataset.digest)


def _merge(
    base: StoredDataset | None,
    ours: StoredDataset,
    theirs: StoredDataset,
    generations: tuple[int, int] = (2, 3),
) -> Entry | Conflict:
    context = MergeContext(automatic=True, strategy="fail", generations=generations)
    old = None if base is None else _entry(base)
    return DatasetMergeDriver().merge(
        ours.objects,  # type: ignore[arg-type]  # MemoryObjects is a sink too
        "datasets/x",
        old,
        _entry(ours),
        _entry(theirs),
        context,
    )


def _numbers(dataset: StoredDataset) -> list[int]:
    found: list[int] = dataset["n"][:].tolist()
    return found


WIDTHS = st.sampled_from([3, 300, 9000])


@settings(max_examples=examples(10))
@given(
    st.integers(0, 20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.tuples(WIDTHS, WIDTHS, WIDTHS),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_the_result_holds_the_rows_of_both_and_is_the_same_whoever_merges(
    shared: int, one: int, two: int, widths: tuple[int, int, int], generations: tuple[int, int]
) -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, shared, widths[0])] if shared else [])
    options: dict[str, Any] = {"base": base, "budget_bytes": 1 << 15, "page_bytes": 1024}
    ours = stored(objects, SCHEMA, [_rows(100, one, widths[1])], 1, **options)
    theirs = stored(objects, SCHEMA, [_rows(200, two, widths[2])], 2, **options)
    merged = _merge(base, ours, theirs, generations)
    mirrored = _merge(base, theirs, ours, generations[::-1])
    if isinstance(merged, Conflict):
        assert isinstance(mirrored, Conflict)
        assert (shared, mirrored.reason) == (0, merged.reason)
        return
    assert mirrored == merged
    found = open_dataset(objects, merged.digest)
    expected = [
        *range(shared),
        *sorted([*range(100, 100 + one), *range(200, 200 + two)]),
    ]
    assert sorted(_numbers(found)) == expected
    assert _numbers(found)[:shared] == list(range(shared))
    assert [row["b"][:1] for row in found] == [bytes([n % 256]) for n in _numbers(found)]
    assert found.root.stored_bytes == sum(e.stored_bytes for e in found.root.statistics)


def test_the_side_of_the_lower_generation_comes_first() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, 1)])
    ours = stored(objects, SCHEMA, [_rows(10, 2)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(20, 2)], 2, base=base)
    merged = _merge(base, ours, theirs, (5, 4))
    assert isinstance(merged, Entry)
    assert _numbers(open_dataset(objects, merged.digest)) == [0, 20, 21, 10, 11]


def test_rows_that_one_side_has_from_the_other_come_once() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, 1)])
    ours = stored(objects, SCHEMA, [_rows(10, 2)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(20, 2)], 2, base=ours)
    merged = _merge(base, ours, theirs, (2, 3))
    assert isinstance(merged, Entry)
    assert _numbers(open_dataset(objects, merged.digest)) == [0, 10, 11, 20, 21]


def test_chunks_of_both_sides_are_linked_not_copied() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, 10, 9000)])
    ours = stored(objects, SCHEMA, [_rows(10, 10, 9000)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(20, 10, 9000)], 2, base=base)
    chunks = {digest for digest, link in objects.links.items() if link.kind is Kind.CHUNK}
    merged = _merge(base, ours, theirs)
    assert isinstance(merged, Entry)
    fresh = {digest for digest, link in objects.links.items() if link.kind is Kind.CHUNK} - chunks
    assert sum(objects.links[digest].bytes for digest in fresh) < 20_000


@pytest.mark.parametrize("other", ["append", "delete row 1", "label of row 1"])
def test_rows_that_one_side_replaced_do_not_mix_with_changes_of_those_there_were(
    other: str,
) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    ours = _after(objects, base, other)
    theirs = stored(objects, base.schema, [rows(500, 4)], 99)
    found = _merge(base, ours, theirs)
    assert isinstance(found, Conflict)
    assert "all rows were replaced in theirs, and ours changed rows" in found.reason
    assert found.details[0]["what"] == "replaced"


@pytest.mark.parametrize("other", ["property", "rename label", "widen label"])
def test_replaced_rows_take_other_columns_and_properties(other: str) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    theirs = stored(objects, base.schema, [rows(500, 4)], 99)
    found = _merge(base, _after(objects, base, other), theirs)
    assert isinstance(found, Entry), found
    assert _numbers(open_dataset(objects, found.digest)) == [500, 501, 502, 503]


def test_two_new_datasets_of_one_name_are_a_conflict() -> None:
    objects = MemoryObjects()
    ours, theirs = (stored(objects, SCHEMA, [_rows(0, 2)], seed) for seed in (1, 2))
    found = _merge(None, ours, theirs)
    assert isinstance(found, Conflict)
    assert "both sides made" in found.reason


# ------------------------------------------------------------------------------ taking back


def _after(
    objects: MemoryObjects, dataset: StoredDataset, *names: str, seed: int = 0
) -> StoredDataset:
    for at, name in enumerate(names):
        dataset = step(objects, dataset, name, seed + at)
    return dataset


def _reverted(
    objects: MemoryObjects, before: StoredDataset, commit: StoredDataset, tip: StoredDataset
) -> StoredDataset:
    """`tip` without what led from `before` to `commit`, as `revert` merges it."""
    found = _merge(commit, tip, before, (9, 10))
    assert isinstance(found, Entry), found
    return open_dataset(objects, found.digest)


CONTESTED = {("all labels", "label of row 9")}


@sampled_product(
    "change,later",
    [
        "append",
        "delete rows",
        "delete a fragment",
        "label of row 1",
        "all labels",
        "add with values",
        "add with default",
        "rename label",
        "upsert",
        "drop text",
        "property beside",
    ],
    ["append", "label of row 9", "compact", "property", "add with nulls"],
    dev=9,
)
def test_a_change_is_taken_back_under_what_came_later(change: str, later: str) -> None:
    objects = MemoryObjects()
    before = base_dataset(objects)
    commit = _after(objects, before, change, seed=1)
    tip = _after(objects, commit, later, seed=2)
    expected = merge_versions(*map(version_of, (commit, tip, before)))
    found = _merge(commit, tip, before, (9, 10))
    assert isinstance(found, Conflict) == ((change, later) in CONTESTED)
    if isinstance(found, Conflict):
        assert {kind for kind, _ in expected} == {each["what"] for each in found.details}
        return
    assert version_of(open_dataset(objects, found.digest)) == expected


def test_taking_back_a_deletion_makes_the_rows_what_they_were() -> None:
    objects = MemoryObjects()
    before = base_dataset(objects)
    commit = _after(objects, before, "delete rows")
    tip = _after(objects, commit, "append")
    found = _reverted(objects, before, commit, tip)
    assert _numbers(found) == [*range(24), *range(1000, 1003)]
    assert found.root.deleted == 0


def test_rows_come_back_that_compaction_has_taken_out() -> None:
    objects = MemoryObjects()
    before = base_dataset(objects)
    commit = _after(objects, before, "delete rows")
    tip = _after(objects, commit, "compact", "append")
    found = _reverted(objects, before, commit, tip)
    assert sorted(_numbers(found)) == [*range(24), *range(2000, 2003)]
    assert version_of(found).rows.keys() > version_of(before).rows.keys()


# ------------------------------------------------------------------------------ strategies


def _decided(
    base: StoredDataset, ours: StoredDataset, theirs: StoredDataset, strategy: str
) -> StoredDataset:
    context = MergeContext(automatic=False, strategy=strategy, generations=(2, 3))
    objects: Any = ours.objects
    found = DatasetMergeDriver().merge(
        objects, "datasets/x", *map(_entry, (base, ours, theirs)), context
    )
    assert isinstance(found, Entry), found
    return open_dataset(objects, found.digest)


@pytest.mark.parametrize(("strategy", "label"), [("ours", 77), ("theirs", 78)])
def test_a_strategy_decides_cells_and_keeps_all_else_of_both(strategy: str, label: int) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    ours = _after(objects, base, "label of row 1", "append", seed=1)
    theirs = _after(objects, base, "other label of row 1", "label of row 9", "append", seed=2)
    found = _decided(base, ours, theirs, strategy)
    assert found["label"][:].tolist()[1] == label
    assert found["label"][:].tolist()[9] == 79
    assert found.rows == base.rows + 6


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("strategy", "rows"), [("ours", 23), ("theirs", 24)])
def test_a_strategy_decides_between_deleting_a_row_and_changing_it(
    strategy: str, rows: int, compacted: bool
) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    ours = _after(objects, base, "delete row 1", *(["compact"] if compacted else []))
    theirs = _after(objects, base, "label of row 1")
    found = _decided(base, ours, theirs, strategy)
    assert found.rows == rows
    labels = dict(zip(_numbers(found), found["label"][:].tolist(), strict=True))
    assert labels.get(1) == (77 if strategy == "theirs" else None)


@pytest.mark.parametrize(("strategy", "rows"), [("ours", 23), ("theirs", 24)])
def test_so_it_does_the_other_way_round(strategy: str, rows: int) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    deleted = _after(objects, base, "delete row 1")
    changed = _after(objects, base, "label of row 1")
    opposite = {"ours": "theirs", "theirs": "ours"}[strategy]
    assert _decided(base, changed, deleted, opposite).rows == rows


SCHEMA_CASES = [
    ("rename label", "rename label otherwise", {"label_a"}, {"label_b"}),
    ("drop label", "label of row 9", set(), {"label"}),
    ("drop label", "rename label", set(), {"label_a"}),
]


@pytest.mark.parametrize(("one", "two", "ours", "theirs"), SCHEMA_CASES)
def test_a_strategy_decides_what_becomes_of_a_column(
    one: str, two: str, ours: set[str], theirs: set[str]
) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    mine, yours = _after(objects, base, one), _after(objects, base, two)
    for strategy, expected in (("ours", ours), ("theirs", theirs)):
        found = _decided(base, mine, yours, strategy)
        assert {name for name in found.schema.names if name.startswith("label")} == expected
        assert found.rows == base.rows
    for name in theirs:
        found = _decided(base, mine, yours, "theirs")
        assert found[name][:].tolist() == yours[name][:].tolist()


@pytest.mark.parametrize(
    ("mine", "yours"),
    [
        (np.arange(24), np.arange(24) % 20),
        (np.arange(24), None),
        (None, np.arange(24)),
    ],
)
def test_values_of_a_column_that_both_sides_added_must_agree(mine: Any, yours: Any) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    column = Column("score", Scalar("int32"), default=7)
    ours, theirs, same = (
        open_dataset(objects, add_column(objects, base, column, values).digest)
        for values in (mine, yours, mine)
    )
    found = _merge(base, ours, theirs)
    assert isinstance(found, Conflict)
    assert "column 'score'" in found.reason
    for strategy, side in (("ours", ours), ("theirs", theirs)):
        decided = _decided(base, ours, theirs, strategy)
        assert decided["score"][:].tolist() == side["score"][:].tolist()
    assert isinstance(_merge(base, ours, same), Entry)


def test_rows_without_a_value_for_a_column_become_null_where_a_side_is_preferred() -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    ours = _after(objects, base, "add with values", seed=1)
    theirs = _after(objects, base, "append", seed=2)
    found = _merge(base, ours, theirs)
    assert isinstance(found, Conflict)
    assert "needs a backfill of 3 rows" in found.reason
    given = _decided(base, ours, theirs, "ours")["given"][:]
    assert [None if each is np.ma.masked else int(each) for each in given] == [
        *range(100, 124),
        None,
        None,
        None,
    ]


def test_nothing_is_decided_automatically() -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    ours = _after(objects, base, "label of row 1")
    theirs = _after(objects, base, "other label of row 1")
    context = MergeContext(automatic=True, strategy="ours", generations=(2, 3))
    entries = map(_entry, (base, ours, theirs))
    assert isinstance(
        DatasetMergeDriver().merge(objects, "datasets/x", *entries, context), Conflict
    )


# ------------------------------------------------------------------------------ conflicts


def test_a_conflict_names_row_key_column_and_the_three_values() -> None:
    objects = MemoryObjects()
    base = base_dataset(objects)
    link = set_properties(objects, base, {"key": "n"})
    base = open_dataset(objects, link.digest)
    ours = _after(objects, base, "label of row 9")
    theirs = _after(objects, base, "all labels")
    found = _merge(base, ours, theirs)
    assert isinstance(found, Conflict)
    (detail,) = found.details
    assert "(n=9), column 'label': 79 in ours, 9 in theirs, 4 before" in found.reason
    assert {name: detail[name] for name in ("what", "column", "key", "base", "ours", "theirs")} == {
        "what": "cell",
        "column": "label",
        "key": {"n": "9"},
        "base": "4",
        "ours": "79",
        "theirs": "9",
    }


def test_twenty_conflicts_are_named_and_the_others_counted() -> None:
    objects = MemoryObjects()
    base = base_dataset(objects, fragments=4)
    changed = (
        update_rows(objects, base, slice(None), {"label": [value] * base.rows})
        for value in (-1, -2)
    )
    found = _merge(base, *(open_dataset(objects, link.digest) for link in changed))
    assert isinstance(found, Conflict)
    assert len(found.details) == 21
    assert found.details[-1] == {"what": "more", "count": 12, "line": "and 12 more"}
    assert "(and 31 more in this dataset)" in found.reason


# ------------------------------------------------------------------------------ cost and form


def _fresh_bytes(objects: MemoryObjects, before: set[str]) -> int:
    return sum(objects.links[digest].bytes for digest in set(objects.links) - before)


@pytest.mark.parametrize("small", ["label of row 1", "delete a fragment", "append", "property"])
def test_a_merge_writes_what_the_smaller_change_takes(small: str) -> None:
    objects = MemoryObjects()
    base = base_dataset(objects, fragments=4, count=240)
    before = set(objects.links)
    large = _after(objects, base, "add text with values", "append", "all blobs", seed=1)
    large_bytes = _fresh_bytes(objects, before)
    ours = _after(objects, base, small, seed=5)
    before = set(objects.links)
    assert isinstance(_merge(base, ours, large), Entry)
    assert _fresh_bytes(objects, before) < large_bytes / 8


def test_a_merge_reads_no_page_of_columns_that_nobody_changed() -> None:
    objects = MemoryObjects()
    base = base_dataset(objects, fragments=3, count=300)
    ours = _after(objects, base, "label of row 1", "append", seed=1)
    theirs = _after(objects, base, "text to null", "delete a fragment", seed=2)
    chunks = {digest: link for digest, link in objects.links.items() if link.kind is Kind.CHUNK}
    objects.reads.clear()
    assert isinstance(_merge(base, ours, theirs), Entry)
    read = sum(stop - start for digest, start, stop in objects.reads if digest in chunks)
    assert read < sum(link.bytes for link in chunks.values()) / 10


def test_columns_that_both_sides_grouped_differently_come_together() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [])
    ours = stored(objects, SCHEMA, [_rows(0, 30, 3)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(100, 30, 9000)], 2, base=base)
    assert ours.root.groups != theirs.root.groups
    found = _merge(base, ours, theirs)
    assert isinstance(found, Entry)
    merged = open_dataset(objects, found.digest)
    assert _numbers(merged) == [*range(30), *range(100, 130)]
    assert [len(row["b"]) for row in merged] == [3] * 30 + [9000] * 30


WIDE = Schema(
    (
        Column("n", Scalar("int64")),
        Column("image", Image()),
        Column("volume", Tensor("uint8", (None, None), tile=(16, 16))),
        Column("points", Tensor("float32", (None, 2))),
    )
)


def _png(at: int) -> bytes:
    """The head of a PNG of `at` + 1 columns."""
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(
        ">IIBBBBB", at + 1, 7, 8, 2, 0, 0, 0
    )
    return head + bytes(4) + bytes([at % 256]) * 300


def _wide(count: int) -> dict[str, Any]:
    return {
        "n": list(range(count)),
        "image": [_png(at) for at in range(count)],
        "volume": [np.full((20 + at, 30), at, np.uint8) for at in range(count)],
        "points": [np.full((at % 3, 2), at, np.float32) for at in range(count)],
    }


@pytest.mark.parametrize("every", [False, True])
def test_cells_of_images_volumes_and_ragged_tensors_move_with_what_follows_them(
    every: bool,
) -> None:
    objects = MemoryObjects()
    base = stored(objects, WIDE, [_wide(12)])
    where: Any = slice(None) if every else [3]
    count = 12 if every else 1
    new = {
        "image": [_png(100)] * count,
        "volume": [np.full((5, 40), 9, np.uint8)] * count,
        "points": [np.full((4, 2), 7, np.float32)] * count,
    }
    link = update_rows(objects, base, where, new)
    theirs = open_dataset(objects, link.digest)
    link = update_rows(objects, base, [5], {"n": [500]})
    ours = open_dataset(objects, link.digest)
    found = _merge(base, ours, theirs)
    assert isinstance(found, Entry)
    assert found == _merge(base, theirs, ours, (3, 2))
    merged = open_dataset(objects, found.digest)
    for name in ("image", "image.width", "volume", "points"):
        assert equal_lists(merged[name][:], theirs[name][:])
    assert merged["n"][:].tolist() == ours["n"][:].tolist()


def equal_lists(one: Any, two: Any) -> bool:
    return len(one) == len(two) and all(
        np.array_equal(first, second) for first, second in zip(one, two, strict=True)
    )
