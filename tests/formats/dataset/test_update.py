"""Rows are deleted and changed, and nothing else is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.changing.patch import PATCH_LAYERS, PatchState, is_patched
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import add_column, widen_column
from tensorrepo.formats.dataset.metadata import tree_edit
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.dataset.selecting.predicate import col
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.second_readers.linked import unbounded, unlinked

SCHEMA = Schema(
    (
        Column("n", Scalar("int64")),
        Column("label", ClassLabel(("cat", "dog"))),
        Column("text", Text(), nullable=True),
        Column("x", Tensor("uint8", (1000,))),
        Column("ragged", Tensor("int16", (None,))),
    )
)
COUNT = 2000


def _batch(count: int = COUNT) -> dict[str, Any]:
    return {
        "n": np.arange(count),
        "label": np.arange(count) % 2,
        "text": [f"t{at}" * 5 for at in range(count)],
        "x": np.random.default_rng(0).integers(0, 255, (count, 1000), "u1"),
        "ragged": [np.full(at % 5, at, "i2") for at in range(count)],
    }


class Stored:
    """A dataset, and what each change of it adds to the store."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.dataset: StoredDataset = stored(
            self.objects, SCHEMA, [_batch()], budget_bytes=1 << 20, page_bytes=20_000
        )
        self.known = set(self.objects.stored)

    def take(self, link: ObjectLink) -> StoredDataset:
        """Go on with this version."""
        self.dataset = open_dataset(self.objects, link.digest)
        return self.dataset

    def added(self) -> list[tuple[Kind, int]]:
        """Kind and bytes of the objects that were not there when this was asked last."""
        new = set(self.objects.stored) - self.known
        self.known |= new
        return [(self.objects.links[each].kind, len(self.objects.stored[each])) for each in new]

    def added_bytes(self) -> int:
        return sum(size for _, size in self.added())

    def delete(self, where: Any) -> StoredDataset:
        return self.take(delete_rows(self.objects, self.dataset, where))

    def update(self, where: Any, values: Any, **options: Any) -> StoredDataset:
        return self.take(update_rows(self.objects, self.dataset, where, values, **options))


# ------------------------------------------------------------------------------ deleting


def test_a_deletion_writes_metadata_alone() -> None:
    kept = Stored()
    dataset = kept.delete("n in (3, 1000)")
    assert dataset.rows == COUNT - 2
    assert 3 not in dataset["n"][:]
    assert Kind.CHUNK not in {kind for kind, _ in kept.added()}


def test_deleting_a_tenth_writes_a_bit_for_each_row() -> None:
    kept = Stored()
    rows = np.arange(0, COUNT, 10)
    kept.delete(rows)
    small = kept.added_bytes()
    kept.delete([0])
    one = kept.added_bytes()
    assert small - one < COUNT // 8 + 2000


def test_deleting_rows_that_are_gone_changes_nothing() -> None:
    kept = Stored()
    once = kept.delete(col("n") < 5)
    assert kept.delete(col("n") < 5).digest == once.digest


def test_a_fragment_may_lose_all_of_its_rows() -> None:
    kept = Stored()
    dataset = kept.delete(slice(None))
    assert (dataset.rows, list(dataset)) == (0, [])
    grown = kept.take(
        write_dataset(kept.objects, SCHEMA, [_batch(3)], base=dataset, budget_bytes=1 << 20)
    )
    assert grown["n"][:].tolist() == [0, 1, 2]


# ------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n", 7), ("label", "dog"), ("text", "new"), ("text", None), ("x", np.ones(1000, "u1")),
        ("ragged", np.arange(9, dtype="i2")), ("ragged", [1, 2]), ("n", 5),
    ],
)  # fmt: skip
def test_one_value_is_given_to_all_rows(column: str, value: Any) -> None:
    kept = Stored()
    dataset = kept.update([0, 700, 1999], {column: value})
    expected = Stored()
    again = expected.update([0, 700, 1999], {column: [value] * 3})
    assert str(dataset[[0, 1, 700, 1999]][column]) == str(again[[0, 1, 700, 1999]][column])
    assert dataset[1]["n"] == 1


def test_an_arrow_scalar_is_one_value() -> None:
    assert Stored().update([1, 2], {"n": pa.scalar(5)})["n"][1:3].tolist() == [5, 5]


def test_values_are_given_to_rows_in_the_order_in_which_these_are_named() -> None:
    kept = Stored()
    dataset = kept.update([9, 2, 1500], {"n": [90, 20, 15], "text": ["a", "b", None]})
    assert dataset["n"][[2, 9, 1500]].tolist() == [20, 90, 15]
    assert dataset["text"][[2, 9, 1500]] == ["b", "a", None]


def test_values_are_given_by_key() -> None:
    kept = Stored()
    dataset = kept.update({"n": [1999, 0]}, {"text": ["last", "first"]})
    assert dataset["text"][[0, 1999]] == ["first", "last"]


def test_a_function_is_given_what_it_asks_for() -> None:
    kept = Stored()
    seen = set()

    def shout(batch: pa.RecordBatch) -> list[str]:
        seen.update(batch.schema.names)
        return [text.upper() for text in batch["text"].to_pylist()]

    dataset = kept.update(col("n") >= 1990, {"text": shout}, columns=["text"])
    assert dataset[1995]["text"] == "T1995" * 5
    assert dataset[1989]["text"] == "t1989" * 5
    assert seen == {"text"}


def test_rows_keep_their_place_among_deleted_ones() -> None:
    kept = Stored()
    kept.delete(range(0, COUNT, 2))
    dataset = kept.update([0, 999], {"n": -1})
    assert dataset["n"][:].tolist() == [-1, *range(3, 1999, 2), -1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": "x"}, "column 'n'"),
        ({"n": None}, "column 'n'.*null"),
        ({"label": ["cat", "cow"]}, "column 'label'"),
        ({"n": [1, 2, 3]}, "3 values for 2 rows"),
        ({"x": np.zeros(999, "u1")}, "column 'x'"),
        ({"n": lambda _: [1]}, "gave 1 value for 2 rows"),
        ({"n": lambda _: 1}, "one value for 2 rows"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_nothing_is_stored(
    values: Any, message: str
) -> None:
    kept = Stored()
    with pytest.raises(InvalidInputError, match=message):
        kept.update([1, 5], values)
    assert not {kind for kind, _ in kept.added()} & {Kind.DATASET, Kind.LEAF}


@pytest.mark.parametrize(("where", "values"), [([5000], {"n": 1}), ([1], {"nothing": 1})])
def test_a_row_or_column_that_is_not_there_is_refused(where: Any, values: Any) -> None:
    with pytest.raises(NotFoundError):
        Stored().update(where, values)


# ------------------------------------------------------------------------------ what is written


def test_values_that_are_there_already_are_not_written() -> None:
    kept = Stored()
    before = kept.dataset.digest
    same = {name: values[:10] for name, values in _batch().items()}
    assert kept.update(slice(0, 10), same).digest == before
    assert kept.added() == []


def test_a_hundred_labels_cost_in_proportion() -> None:
    kept = Stored()
    kept.update(np.arange(0, COUNT, 20), {"label": "dog"})
    assert kept.added_bytes() < 60_000  # of a dataset of 2 MB


def test_few_values_of_a_large_column_are_patches() -> None:
    kept = Stored()
    dataset = kept.update([3, 4], {"x": np.zeros(1000, "u1")})
    patches = column_index(dataset, "x").patches
    assert patches is not None
    assert patches.rows.tolist() == [3, 4]
    assert kept.added_bytes() < 20_000


def test_many_values_of_a_column_replace_its_pages_with_the_same_boundaries() -> None:
    kept = Stored()
    before = column_index(kept.dataset, "x")
    dataset = kept.update(slice(0, COUNT, 2), {"x": np.zeros(1000, "u1")})
    after = column_index(dataset, "x")
    assert after.patches is None
    assert after.first_row.tolist() == before.first_row.tolist()
    assert not dataset["x"][::2].any()
    assert (dataset["x"][1] == _batch()["x"][1]).all()


def test_patches_over_patches_end_in_new_pages() -> None:
    kept = Stored()
    for turn in range(PATCH_LAYERS + 1):
        assert column_index(kept.dataset, "x").patches is None or turn
        dataset = kept.update([turn, 50], {"x": np.full(1000, turn, "u1")})
    assert column_index(dataset, "x").patches is None
    assert dataset["x"][[0, 1, 7, 50]][:, 0].tolist() == [0, 1, 7, PATCH_LAYERS]


@pytest.mark.parametrize(
    ("state", "patched"),
    [
        (PatchState(100_000, 10_000, 1), True),
        (PatchState(100_000, 10_001, 1), False),
        (PatchState(4095, 1, 1), False),
        (PatchState(100_000, 10, PATCH_LAYERS), True),
        (PatchState(100_000, 10, PATCH_LAYERS + 1), False),
    ],
)
def test_patch_or_pages_follows_from_bytes_and_layers(state: PatchState, patched: bool) -> None:
    assert is_patched(state) == patched


def test_no_chunk_of_another_column_is_written_again() -> None:
    kept = Stored()
    kept.update(slice(None), {"ragged": [np.zeros(1, "i2")] * COUNT})
    assert kept.added_bytes() < 100_000


# ------------------------------------------------------------------------------ odd columns


def test_an_added_column_takes_values_fragment_by_fragment() -> None:
    kept = Stored()
    kept.take(
        add_column(kept.objects, kept.dataset, Column("flag", Scalar("float64"), nullable=True))
    )
    dataset = kept.update([1, 2], {"flag": 2.5})
    assert dataset["flag"][:4].tolist() == [None, 2.5, 2.5, None]
    filled = kept.update(slice(None), {"flag": np.arange(COUNT) * 1.0})
    assert filled["flag"][:].tolist() == list(range(COUNT))
    assert filled.root.statistics[-1].nulls == 0


def test_a_widened_column_takes_wide_values() -> None:
    objects = MemoryObjects()
    schema = Schema.of({"n": "int16", "text": Text()})
    batch = {"n": np.arange(5000), "text": ["abc"] * 5000}
    narrow = stored(objects, schema, [batch], page_bytes=3000)
    wide = open_dataset(objects, widen_column(objects, narrow, "n", "int64").digest)
    link = update_rows(objects, wide, [3, 4000], {"n": 1 << 40})
    changed = open_dataset(objects, link.digest)
    assert changed["n"][[2, 3, 4000]].tolist() == [2, 1 << 40, 1 << 40]
    compacted = compact_dataset(objects, changed, everything=True)
    assert open_dataset(objects, compacted.digest)["n"][3] == 1 << 40


def test_a_column_that_was_patched_before_it_was_widened_takes_wide_values() -> None:
    objects = MemoryObjects()
    narrow = stored(objects, Schema.of({"n": "int32"}), [{"n": np.arange(5000)}])
    link = update_rows(objects, narrow, [3], {"n": [-3]})
    patched = open_dataset(objects, link.digest)
    assert column_index(patched, "n").patches is not None
    wide = open_dataset(objects, widen_column(objects, patched, "n", "float64").digest)
    link = update_rows(objects, wide, [5], {"n": [2.5]})
    changed = open_dataset(objects, link.digest)
    assert changed["n"][:7].tolist() == [0, 1, 2, -3, 4, 2.5, 6]


def test_a_patch_without_tiles_leaves_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_edit, "INLINE_DATA_BYTES", 0)
    objects = MemoryObjects()
    schema = Schema((Column("v", Tensor("int16", (None, 4), tile=(2, 4)), nullable=True),))
    volumes = {"v": [np.full((400, 4), at, "i2") for at in range(30)]}
    dataset = stored(objects, schema, [volumes])
    dataset = stored(objects, schema, [volumes], 1, base=dataset)
    for row, value in ((35, np.full((400, 4), 99, "i2")), (5, None)):
        link = update_rows(objects, dataset, [row], {"v": [value]})
        dataset = open_dataset(objects, link.digest)
    patches = column_index(dataset, "v").patches
    assert patches is not None
    assert patches.rows.tolist() == [5, 35]
    assert dataset["v"][5] is None
    assert (dataset["v"][35] == 99).all()


def test_rows_cut_into_tiles_are_patched_whole() -> None:
    objects = MemoryObjects()
    schema = Schema.of({"volume": Tensor("uint8", (None, None), (8, 8)), "n": "int64"})
    rows = {"volume": [np.full((40, 40), at, "u1") for at in range(30)], "n": range(30)}
    dataset = stored(objects, schema, [rows])
    link = update_rows(objects, dataset, [7], {"volume": np.zeros((3, 50), "u1")})
    changed = open_dataset(objects, link.digest)
    assert column_index(changed, "volume").patches is not None
    assert changed["volume"][7].shape == (3, 50)
    assert (changed["volume"][8] == 8).all()


def test_patches_of_many_fragments_do_not_wait_for_the_end_of_their_leaf() -> None:
    objects = MemoryObjects()
    schema = Schema((Column("x", Tensor("uint8", (512,))), Column("v", Bytes())))
    batch = {"x": np.zeros((4000, 512), "u1"), "v": [b"." * 600] * 4000}
    dataset = stored(objects, schema, [batch], budget_bytes=1 << 18)
    rows = np.arange(0, 4000, 25)
    before = set(objects.stored)
    values = {"x": np.ones(512, "u1"), "v": b"+" * 500}
    link = update_rows(objects, dataset, rows, values, budget_bytes=1 << 16)
    changed = open_dataset(objects, link.digest)
    new = [objects.links[each] for each in objects.stored.keys() - before]
    assert max(each.bytes for each in new if each.kind is Kind.CHUNK) < 1 << 16
    for name in values:
        patches = column_index(changed, name).patches
        assert patches is not None
        assert patches.rows.tolist() == rows.tolist()
    assert changed["x"][rows].all()
    assert changed["x"][:].sum() == 512 * len(rows)
    assert not unlinked(changed)
    assert not unbounded(changed)


def test_memory_does_not_bound_what_one_fragment_holds() -> None:
    objects = MemoryObjects()
    schema = Schema.of({"n": "int64", "data": Bytes()})
    rows = {"n": np.arange(500), "data": [b"."] * 500}
    dataset = stored(objects, schema, [rows])
    link = update_rows(
        objects, dataset, slice(None), {"data": [bytes(2000)] * 500}, budget_bytes=100_000
    )
    changed = open_dataset(objects, link.digest)
    assert changed["data"][499] == bytes(2000)
    assert changed.stored_bytes > 1_000_000


def test_progress_tells_rows_and_bytes() -> None:
    told: list[tuple[int, int]] = []
    kept = Stored()
    kept.update(slice(0, 100), {"n": 5}, progress=lambda rows, size: told.append((rows, size)))
    assert told[-1] == (100, 99 * 8)


@pytest.mark.parametrize("every", [1, 3, 200])
def test_a_fragment_larger_than_memory_is_changed_in_pieces(every: int) -> None:
    objects = MemoryObjects()
    light = stored(objects, Schema.of({"n": "int64"}), [{"n": np.arange(600)}])
    heavy = np.random.default_rng(0).integers(0, 255, (600, 3000), "u1")
    column = Column("x", Tensor("uint8", (3000,)))
    dataset = open_dataset(objects, add_column(objects, light, column, heavy).digest)

    def flipped(batch: pa.RecordBatch) -> Any:
        return 255 - heavy[batch["n"].to_numpy()]

    rows = np.arange(0, 600, every)
    link = update_rows(objects, dataset, rows, {"x": flipped}, columns=["n"], budget_bytes=20_000)
    changed = open_dataset(objects, link.digest)
    heavy[rows] = 255 - heavy[rows]
    assert (changed["x"][:] == heavy).all()
    assert (column_index(changed, "x").patches is not None) == (every == 200)
    again = update_rows(objects, changed, rows, {"x": heavy[rows]}, budget_bytes=20_000)
    assert again.digest == changed.digest
