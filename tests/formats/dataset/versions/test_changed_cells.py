"""Changes are found by what metadata says, and are given as arrays sorted by row id."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import (
    add_column,
    drop_column,
    rename_column,
    widen_column,
)
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, FragmentPart, WaitingPage
from tensorrepo.formats.dataset.metadata.span_write import Fragment
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit, TreeEditor
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.pages.page import encode_page
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Schema, Tensor
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.versions import changed_cells as changes
from tensorrepo.formats.dataset.versions.changed_cells import (
    VersionPair,
    changed_cells,
    changed_rows,
)
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.dataset.writing import fragment_write
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.adopted import adopted, opened, write_parquet
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of({"n": "int64", "x": "float32"})
FRAGMENTS = 9000


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def base(objects: MemoryObjects) -> StoredDataset:
    """400 rows in pages of 32 rows of n and 64 rows of x."""
    batch = {"n": np.arange(400), "x": np.arange(400, dtype="f4")}
    return stored(objects, SCHEMA, [batch], page_bytes=256)


def _open(objects: MemoryObjects, link: ObjectLink) -> StoredDataset:
    return open_dataset(objects, link.digest)


def _updated(
    objects: MemoryObjects, dataset: StoredDataset, rows: Any, **values: Any
) -> StoredDataset:
    return _open(objects, update_rows(objects, dataset, rows, values))


def _found(old: StoredDataset, new: StoredDataset) -> dict[str, list[int]]:
    """Rows of the base that differ, by the column's name in the new version."""
    names = {column.id: column.name for column in new.schema.columns}
    return {
        names[column]: sorted(cells.base_rows.tolist())
        for column, cells in changed_cells(VersionPair.of(old, new)).items()
    }


def _edited(
    objects: MemoryObjects, dataset: StoredDataset, values: Any, name: str = "n", fragment: int = 0
) -> StoredDataset:
    """A column's pages of one fragment replaced by one page."""
    column = dataset.schema.column(name)
    page = encode_page(FixedValues(np.asarray(values, column.storage.element)), column.storage)
    part = ColumnPart(column.id, column.storage, [WaitingPage(0, lambda: page, page.data.nbytes)])
    with ThreadPoolExecutor(1) as storers:
        editor = TreeEditor(objects, dataset, dataset.schema, dataset.root.groups, storers, 1 << 20)
        editor.edit(iter([(fragment, FragmentEdit(pages={column.id: part}))]))
        return _open(objects, editor.finish())


def test_cells_and_rows_are_sorted_by_id(objects: MemoryObjects, base: StoredDataset) -> None:
    more = {"n": np.arange(50), "x": np.zeros(50, "f4")}
    grown = stored(objects, SCHEMA, [more], 7, base=base, page_bytes=256)
    new = _updated(objects, grown, [440, 3, 410, 17], n=-1)
    new = _open(objects, delete_rows(objects, new, [5, 430, 2]))
    cells = changed_cells(VersionPair.of(grown, new))[base.schema.column("n").id]
    deleted = changed_rows(VersionPair.of(grown, new)).deleted
    for ids, rows in ((cells.ids, cells.base_rows), (deleted.ids, deleted.rows)):
        assert ids.tolist() == sorted(ids.tolist())
        assert row_id_table(grown).find(ids).tolist() == rows.tolist()
    assert sorted(cells.base_rows.tolist()) == [3, 17, 410, 440]
    assert sorted(deleted.rows.tolist()) == [2, 5, 430]
    assert row_id_table(new).find(cells.ids).tolist() == cells.side_rows.tolist()


@pytest.mark.parametrize("share", [0.02, 0.9], ids=["patched", "pages replaced"])
def test_values_that_differ_are_found_wherever_they_were_put(
    objects: MemoryObjects, base: StoredDataset, share: float
) -> None:
    rows = np.flatnonzero(np.random.default_rng(1).random(400) < share)
    new = _updated(objects, base, rows, n=np.arange(len(rows)) - 500)
    assert _found(base, new) == {"n": rows.tolist()}
    assert _found(new, base) == {"n": rows.tolist()}


def test_a_page_written_anew_with_equal_values_is_no_change(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    new = _edited(objects, base, np.arange(400))
    pair = VersionPair.of(base, new)
    column = base.schema.column("n")
    assert pair.comparer(column, column).candidates.rows == 400
    assert _found(base, new) == {}


def test_a_patch_and_a_page_that_say_the_same_are_no_change(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    patched = _updated(objects, base, [7, 9], n=-1)
    values = np.arange(400)
    values[[7, 9]] = -1
    assert _found(patched, _edited(objects, base, values)) == {}


def test_the_same_patch_on_both_sides_is_not_read_again(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    old = _updated(objects, base, [7, 9], n=-1)
    new = _updated(objects, old, [100], x=0.5)
    pair = VersionPair.of(old, new)
    column = base.schema.column("n")
    assert pair.comparer(column, column).candidates.rows == 0
    assert _found(old, new) == {"x": [100]}


def test_values_that_were_set_back_are_no_change(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    there = _updated(objects, base, [7, 9], n=-1)
    assert _found(base, _updated(objects, there, [7, 9], n=[7, 9])) == {}


def test_deletions_on_both_sides_leave_what_one_side_deleted(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    old = _open(objects, delete_rows(objects, base, [1, 2, 3]))
    new = _open(objects, delete_rows(objects, base, [2, 3, 4]))
    found = changed_rows(VersionPair.of(old, new))
    assert found.deleted.rows.tolist() == [4]
    assert found.added.rows.tolist() == [1]
    assert _found(old, new) == {}


def test_deleted_rows_have_no_cells(objects: MemoryObjects, base: StoredDataset) -> None:
    changed = _updated(objects, base, [10, 11], n=-1)
    new = _open(objects, delete_rows(objects, changed, [10]))
    assert _found(base, new) == {"n": [11]}


def test_compaction_moves_rows_and_changes_none(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    worn = _open(objects, delete_rows(objects, _updated(objects, base, [4], n=-1), [0, 300]))
    compacted = _open(objects, compact_dataset(objects, worn, everything=True))
    assert _found(worn, compacted) == {}
    assert _found(base, compacted) == {"n": [4]}
    rows = changed_rows(VersionPair.of(base, compacted))
    assert (rows.deleted.rows.tolist(), rows.added.rows.tolist()) == ([0, 300], [])


def test_a_widened_column_has_the_same_values(objects: MemoryObjects, base: StoredDataset) -> None:
    wide = _open(objects, widen_column(objects, base, "x", "float64"))
    new = _updated(objects, wide, [8], x=0.1)
    assert _found(base, new) == {"x": [8]}
    assert _found(new, base) == {"x": [8]}


def test_a_column_that_may_be_null_now_has_the_same_values(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    loose = _open(objects, widen_column(objects, base, "n", nullable=True))
    assert _found(base, _updated(objects, loose, [8, 9], n=[None, 9])) == {"n": [8]}


def test_a_renamed_column_is_the_same_column(objects: MemoryObjects, base: StoredDataset) -> None:
    named = _open(objects, rename_column(objects, base, "n", "number"))
    assert _found(base, _updated(objects, named, [3], number=-3)) == {"number": [3]}


def test_a_column_that_came_again_is_another_one(
    objects: MemoryObjects, base: StoredDataset
) -> None:
    without = _open(objects, drop_column(objects, base, "n"))
    again = _open(objects, add_column(objects, without, Column("n", Scalar("int64"), default=5)))
    assert _found(base, again) == {}


def test_a_default_is_as_good_as_a_page_of_it(objects: MemoryObjects, base: StoredDataset) -> None:
    old = _open(objects, add_column(objects, base, Column("d", Scalar("int64"), default=5)))
    assert _found(old, _edited(objects, old, np.full(400, 5), "d")) == {}
    assert _found(old, _edited(objects, old, np.arange(400) % 6, "d")) == {
        "d": [row for row in range(400) if row % 6 != 5]
    }


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (np.nan, np.nan, False),
        (0.0, -0.0, True),
        (1.0, 1.0, False),
        (np.float32(np.uint32(0x7FC00001).view("f4")), np.float32(np.nan), True),
    ],
)
def test_floats_are_compared_by_their_bits(
    objects: MemoryObjects, base: StoredDataset, old: float, new: float, differs: bool
) -> None:
    before = _edited(objects, base, np.full(400, old, "f4"), "x")
    after = _edited(objects, base, np.full(400, new, "f4"), "x")
    assert _found(before, after) == ({"x": list(range(400))} if differs else {})


# ------------------------------------------------------------------------------ large ones


def _many(objects: MemoryObjects, values: Sequence[int]) -> StoredDataset:
    """A fragment of one row for each value: so many that there are several leaves and indexes."""
    empty = stored(objects, Schema.of({"n": "int64"}), [])
    column = empty.schema.column("n")
    uids = random.Random(0)
    with ThreadPoolExecutor(1) as storers:
        tree = TreeWriter(objects, empty.schema, ((column.id,),), empty, storers, 1 << 20)
        for number in values:
            page = encode_page(FixedValues(np.array([number])), column.storage)
            waiting = WaitingPage(0, lambda page=page: page, page.data.nbytes)  # type: ignore[misc]  # bound now
            part = FragmentPart((ColumnPart(column.id, column.storage, [waiting]),))
            tree.add(Fragment(uids.getrandbits(64), 1, {column.id: part}))
        return _open(objects, tree.finish({}))


@pytest.fixture(scope="module")
def large() -> tuple[MemoryObjects, StoredDataset]:
    objects = MemoryObjects()
    dataset = _many(objects, range(FRAGMENTS))
    assert len(dataset.root.leaves) > 1
    return objects, dataset


@pytest.mark.soak
def test_the_work_is_that_of_the_change(large: tuple[MemoryObjects, StoredDataset]) -> None:
    objects, old = large
    new = _updated(objects, old, [50, 70], n=-1)
    old, new = (open_dataset(objects, each.digest) for each in (old, new))
    objects.reads.clear()
    pair = VersionPair.of(old, new)
    column = old.schema.column("n")
    assert pair.comparer(column, column).candidates.rows == 2
    assert pair.old.dataset.root.rows < FRAGMENTS
    # Two leaves, one patch or index that is new: the index that both have is not even read.
    assert len(objects.reads) <= 4


def test_rows_of_parts_are_mapped_to_those_of_the_whole(
    large: tuple[MemoryObjects, StoredDataset],
) -> None:
    objects, old = large
    worn = _open(objects, delete_rows(objects, old, [1, 8000]))
    new = _updated(objects, worn, [8100, 8997], n=-1)
    cells = changed_cells(VersionPair.of(worn, new))[old.schema.column("n").id]
    assert sorted(cells.base_rows.tolist()) == [8102, 8999]
    pair = VersionPair.of(worn, new)
    first = int(pair.new.first_row[0])
    assert first == 0
    rows = np.array([first])
    whole = int(pair.new.physical(rows)[0])
    assert whole > 1000
    assert pair.new.live(rows).tolist() == [whole - 1]  # row 1 was deleted before it


def test_rows_that_were_appended_are_added_and_nothing_else(
    large: tuple[MemoryObjects, StoredDataset],
) -> None:
    objects, old = large
    new = _open(objects, write_dataset(objects, old.schema, [{"n": [1, 2]}], base=old))
    found = changed_rows(VersionPair.of(old, new))
    assert sorted(found.added.rows.tolist()) == [FRAGMENTS, FRAGMENTS + 1]
    assert found.deleted.rows.tolist() == []
    assert _found(old, new) == {}


@pytest.mark.soak  # rewrites all fragments, for most of which one answer is compared
def test_other_boundaries_of_leaves_are_no_change(
    large: tuple[MemoryObjects, StoredDataset],
) -> None:
    objects, old = large
    compacted = _open(objects, compact_dataset(objects, old, everything=True))
    assert len(compacted.root.leaves) == 1
    assert _found(old, compacted) == {}
    assert changed_rows(VersionPair.of(old, compacted)).added.rows.tolist() == []


# ------------------------------------------------------------------------------ tiles


@pytest.fixture
def _same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are written twice have the ids of their seed, whatever they hold."""
    monkeypatch.setattr(fragment_write, "new_uid", lambda _content, rng: rng.getrandbits(64))


def _tiled(objects: MemoryObjects, values: Any, codec: Codec = Codec.NONE) -> StoredDataset:
    schema = Schema.of({"v": Tensor("int32", (64, None), (32, 32))})
    return stored(objects, schema, [{"v": list(values)}], codec=codec)


@pytest.fixture
def volumes() -> Any:
    return np.random.default_rng(3).integers(0, 9, (6, 64, 70), np.int32)


@pytest.mark.usefixtures("_same_ids")
def test_rows_whose_tiles_are_equal_are_not_read(objects: MemoryObjects, volumes: Any) -> None:
    old = _tiled(objects, volumes)
    changed = volumes.copy()
    changed[4, 60, 69] += 1
    new = _tiled(objects, changed)  # the same seed: the same ids
    tiles = {link.digest for link in objects.links.values() if link.kind is Kind.CHUNK}
    objects.reads.clear()
    assert _found(old, new) == {"v": [4]}
    read = sum(stop - start for digest, start, stop in objects.reads if digest in tiles)
    assert read < 4 * volumes[0].nbytes


@pytest.mark.usefixtures("_same_ids")
def test_tiles_of_another_codec_may_hold_equal_values(objects: MemoryObjects, volumes: Any) -> None:
    old, new = _tiled(objects, volumes), _tiled(objects, volumes, Codec.ZSTD)
    pair = VersionPair.of(old, new)
    column = old.schema.column("v")
    assert pair.comparer(column, column).candidates.rows == 6
    assert _found(old, new) == {}


@pytest.mark.usefixtures("_same_ids")
def test_batches_are_cut_by_bytes_where_rows_differ_in_size(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "BATCH_BYTES", 1 << 20)
    sizes = [10] * 3000 + [400_000] * 8 + [10] * 3000
    schema = Schema.of({"b": Bytes()})
    rows = [bytes(size) for size in sizes]
    old = stored(objects, schema, [{"b": rows}])
    changed = [row[:-1] + b"x" for row in rows]
    new = stored(objects, schema, [{"b": changed}])  # the same seed: the same ids
    index = column_index(old, "b")
    cuts = changes.even_cuts(index, 0, len(sizes)).tolist()
    parts = np.add.reduceat(sizes, [0, *cuts])
    assert len(parts) > 3
    assert max(parts) <= 2 << 20
    assert _found(old, new) == {"b": list(range(len(sizes)))}


# ------------------------------------------------------------------------------ files in place


def test_rows_in_files_are_compared_where_they_can_differ(tmp_path: Path) -> None:
    place = adopted(write_parquet(tmp_path / "rows.parquet"))
    objects, old = place.objects, place.open()
    name = next(each.name for each in old.schema.columns if each.type == Scalar("int64"))
    worn = opened(objects, delete_rows(objects, old, [0]).digest, place.outside)
    new = opened(objects, update_rows(objects, worn, [4], {name: -1}).digest, place.outside)
    assert _found(old, new) == {name: [5]}
    compacted = compact_dataset(objects, new, everything=True)
    assert _found(new, opened(objects, compacted.digest, place.outside)) == {}


def test_rows_of_the_same_file_are_not_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet")
    place = adopted(path)
    old = place.open()
    new = opened(place.objects, delete_rows(place.objects, old, [0]).digest, place.outside)
    path.unlink()
    assert _found(old, new) == {}
    assert changed_rows(VersionPair.of(old, new)).deleted.rows.tolist() == [0]
