"""Columns are added, dropped, renamed and widened; only new values are written."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.evolve import (
    add_column,
    drop_column,
    rename_column,
    set_properties,
    widen_column,
)
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Embedding,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import order_key
from tensorrepo.formats.dataset.update import delete_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of({"n": "int32", "text": Text(), "x": Tensor("uint8", (500,))})
COUNT = 1000


def _dataset(objects: MemoryObjects) -> StoredDataset:
    batch = {
        "n": np.arange(COUNT),
        "text": [f"t{at}" * (at % 9) for at in range(COUNT)],
        "x": np.zeros((COUNT, 500), "u1"),
    }
    whole = stored(objects, SCHEMA, [batch], page_bytes=4000, budget_bytes=400_000)
    return open_dataset(objects, delete_rows(objects, whole, [0, 1, 500, 998]).digest)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def dataset(objects: MemoryObjects) -> StoredDataset:
    return _dataset(objects)


def _opened(objects: MemoryObjects, link: ObjectLink) -> StoredDataset:
    return open_dataset(objects, link.digest)


def _new_kinds(objects: MemoryObjects, before: set[Any]) -> list[Kind]:
    return [objects.links[each].kind for each in set(objects.stored) - before]


# ------------------------------------------------------------------------------ adding


@pytest.mark.together
@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (Scalar("bool"), True), (Scalar("float32"), 1.5), (Text(), "none"), (Json(), {"a": [1]}),
        (ClassLabel(("cat", "dog")), "dog"), (Tensor("int16", (2, None)), [[1], [2]]),
        (Tensor("uint8", (None, None), (4, 4)), np.ones((5, 3), "u1")), (Bytes(), b"\0\1"),
        (Embedding("float32", 3), [1, 2, 3]), (Timestamp("s"), datetime(2026, 1, 1, tzinfo=UTC)),
        (Image(), b"png"),
    ],
)  # fmt: skip
def test_a_column_with_a_default_is_a_root_and_no_more(
    objects: MemoryObjects, dataset: StoredDataset, kind: Any, default: Any
) -> None:
    before = set(objects.stored)
    added = _opened(objects, add_column(objects, dataset, Column("new", kind, default=default)))
    assert _new_kinds(objects, before) == [Kind.DATASET]
    plain = stored(MemoryObjects(), Schema((Column("new", kind),)), [[{"new": default}]])
    assert str(added[995]["new"]) == str(added[0]["new"]) == str(plain[0]["new"])
    assert added.schema.names[:4] == ("n", "text", "x", "new")


def test_a_nullable_column_begins_with_nulls(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    column = Column("note", Text(), nullable=True)
    added = _opened(objects, add_column(objects, dataset, column))
    assert added["note"][:3] == [None] * 3
    assert added.root.statistics[-1].nulls == COUNT


def test_a_column_without_values_or_default_is_refused(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    with pytest.raises(InvalidInputError, match="default"):
        add_column(objects, dataset, Column("new", Text()))


def test_statistics_of_a_default_bound_later_rows_too(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    added = _opened(objects, add_column(objects, dataset, Column("k", Scalar("int8"), default=5)))
    rows = [{"n": 1, "text": "", "x": np.zeros(500, "u1"), "k": 9}]
    grown = _opened(objects, write_dataset(objects, added.schema.without_ids(), [rows], base=added))
    found = grown.root.statistics[-1]
    assert (found.min, found.max) == (order_key(np.int8(5)), order_key(np.int8(9)))
    assert grown["k"][-2:].tolist() == [5, 9]


def _embeddings(count: int = COUNT - 4) -> Any:
    return np.arange(count * 300, dtype="f4").reshape(count, 300)


@pytest.mark.parametrize(
    "given",
    [
        _embeddings(),
        list(_embeddings()),
        pa.FixedSizeListArray.from_arrays(pa.array(_embeddings().reshape(-1)), 300),
        lambda batch: _embeddings()[:0] if not batch.num_rows else _of(batch),
    ],
    ids=["array", "list", "arrow", "function"],
)
def test_values_are_given_at_once_or_by_a_function(
    objects: MemoryObjects, dataset: StoredDataset, given: Any
) -> None:
    column = Column("e", Embedding("float32", 300))
    added = _opened(objects, add_column(objects, dataset, column, given, columns=["n"]))
    assert (added["e"][:] == _embeddings()).all()


def _of(batch: pa.RecordBatch) -> Any:
    """The embeddings of rows by their number among those that are not deleted."""
    numbers = batch["n"].to_numpy()
    return _embeddings()[numbers - 2 - (numbers > 500) - (numbers > 998)]


def test_values_come_in_parts_of_any_size(objects: MemoryObjects, dataset: StoredDataset) -> None:
    parts = np.split(_embeddings(), [1, 1, 7, 600, 995])
    column = Column("e", Embedding("float32", 300))
    added = _opened(objects, add_column(objects, dataset, column, iter(parts), page_bytes=5000))
    assert (added["e"][:] == _embeddings()).all()


@pytest.mark.together
@pytest.mark.parametrize("count", [0, 1, COUNT - 5, COUNT - 3])
@pytest.mark.parametrize("in_parts", [False, True])
def test_another_number_of_values_than_rows_is_refused(
    objects: MemoryObjects, dataset: StoredDataset, count: int, *, in_parts: bool
) -> None:
    values = _embeddings(count)
    column = Column("e", Embedding("float32", 300))
    with pytest.raises(InvalidInputError, match=rf"{count} values for {COUNT - 4} rows"):
        add_column(objects, dataset, column, iter([values]) if in_parts else values)


def test_a_value_that_does_not_fit_names_row_and_column(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    values = ["x"] * 700 + [3] + ["x"] * 295
    with pytest.raises(InvalidInputError, match="row 700, column 'new'"):
        add_column(objects, dataset, Column("new", Text()), values)


@pytest.mark.parametrize("row_bytes", [1, 8, 300, 5000, 40_000])
def test_boundaries_of_pages_nest(
    objects: MemoryObjects, dataset: StoredDataset, row_bytes: int
) -> None:
    column = Column("new", Tensor("uint8", (row_bytes,)))
    rows = np.zeros((COUNT - 4, row_bytes), "u1")
    added = _opened(objects, add_column(objects, dataset, column, rows, page_bytes=4000))
    ends = [set(column_index(added, name).first_row.tolist()) for name in added.schema.names]
    assert all(one <= two or two <= one for one, two in combinations(ends, 2))


def test_pages_of_a_new_column_are_about_as_large_as_asked_for(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    column = Column("new", Bytes())
    rng = np.random.default_rng(0)
    values = [bytes(int(rng.integers(0, 1000))) for _ in range(COUNT - 4)]
    added = _opened(objects, add_column(objects, dataset, column, values, page_bytes=20_000))
    sizes = column_index(added, "new").entries["raw_bytes"]
    assert sizes.max() < 25_000
    assert added["new"][:] == values


def test_a_large_column_passes_through_little_memory(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    column = Column("new", Tensor("uint8", (20_000,)))
    parts = (np.full((83, 20_000), at, "u1") for at in range(12))
    added = _opened(objects, add_column(objects, dataset, column, parts, budget_bytes=1 << 20))
    assert added["new"][[0, 83, 995]][:, 0].tolist() == [0, 1, 11]
    index = column_index(added, "new")
    assert len(index.chunks) > 15


def test_a_new_column_is_written_once_and_no_other_one_is(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    before = set(objects.stored)
    add_column(objects, dataset, Column("e", Embedding("float32", 300)), _embeddings())
    written = sum(len(objects.stored[each]) for each in set(objects.stored) - before)
    assert written < 1.05 * _embeddings().nbytes + 20_000


def test_a_column_is_added_to_a_dataset_without_rows(objects: MemoryObjects) -> None:
    empty = stored(objects, SCHEMA, [])
    added = _opened(objects, add_column(objects, empty, Column("new", Text()), []))
    grown = _opened(
        objects,
        write_dataset(
            objects,
            added.schema.without_ids(),
            [[{"n": 1, "text": "a", "x": np.zeros(500, "u1"), "new": "b"}]],
            base=added,
        ),
    )
    assert grown[0]["new"] == "b"


def test_a_column_added_again_is_another_one(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    values = [f"v{at}" for at in range(COUNT - 4)]
    once = _opened(objects, add_column(objects, dataset, Column("new", Text()), values))
    gone = _opened(objects, drop_column(objects, once, "new"))
    again = _opened(objects, add_column(objects, gone, Column("new", Text(), default="d")))
    assert again["new"][:3] == ["d"] * 3
    assert again.schema.column("new").id != once.schema.column("new").id


# ------------------------------------------------------------------------------ metadata alone


def test_dropping_renaming_and_widening_write_a_root(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    before = set(objects.stored)
    changed = _opened(objects, drop_column(objects, dataset, "x"))
    changed = _opened(objects, rename_column(objects, changed, "text", "words"))
    changed = _opened(objects, widen_column(objects, changed, "n", "int64", nullable=True))
    assert set(_new_kinds(objects, before)) == {Kind.DATASET}
    assert changed.schema.names == ("n", "words")
    assert changed["n"][:3].tolist() == [2, 3, 4]
    assert changed["words"][0] == "t2t2"
    assert changed.schema.column("words").id == dataset.schema.column("text").id


def test_the_first_of_a_group_may_go(objects: MemoryObjects, dataset: StoredDataset) -> None:
    left = _opened(objects, drop_column(objects, dataset, "n"))
    assert left["text"][0] == "t2t2"
    again = _opened(objects, drop_column(objects, left, "text"))
    assert again["x"][:].shape == (COUNT - 4, 500)


@pytest.mark.parametrize("wide", ["int64", "float64"])
def test_bounds_go_along_when_a_column_is_widened(
    objects: MemoryObjects, dataset: StoredDataset, wide: str
) -> None:
    found = _opened(objects, widen_column(objects, dataset, "n", wide)).root.statistics[0]
    low, high = (np.dtype(wide).type(each) for each in (0, COUNT - 1))
    assert found.min is not None
    assert found.max is not None
    assert found.min <= order_key(low)
    assert found.max >= order_key(high)


@pytest.mark.together
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda o, d: drop_column(o, d, "nothing"), NotFoundError),
        (lambda o, d: rename_column(o, d, "n", "text"), ConflictError),
        (lambda o, d: rename_column(o, d, "n", "a\0b"), InvalidInputError),
        (lambda o, d: widen_column(o, d, "n", "int8"), InvalidInputError),
        (lambda o, d: add_column(o, d, Column("n", Text(), nullable=True)), ConflictError),
        (lambda o, d: set_properties(o, d, {"a": object()}), InvalidInputError),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    objects: MemoryObjects, dataset: StoredDataset, change: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        change(objects, dataset)


def test_the_last_column_stays(objects: MemoryObjects) -> None:
    single = stored(objects, Schema.of({"n": "int8"}), [{"n": [1]}])
    with pytest.raises(InvalidInputError, match="last one"):
        drop_column(objects, single, "n")


@pytest.mark.parametrize(
    "change",
    [
        lambda o, d: rename_column(o, d, "n", "n"),
        lambda o, d: widen_column(o, d, "n", "int32"),
        lambda o, d: set_properties(o, d, {"none": None}),
    ],
)
def test_a_change_that_changes_nothing_gives_the_same_dataset(
    objects: MemoryObjects, dataset: StoredDataset, change: Any
) -> None:
    assert change(objects, dataset).digest == dataset.digest


def test_properties_are_set_and_taken_away(objects: MemoryObjects, dataset: StoredDataset) -> None:
    noted = _opened(objects, set_properties(objects, dataset, {"source": "web", "year": 2026}))
    left = _opened(objects, set_properties(objects, noted, {"year": None}))
    assert left.root.properties == {"source": "web"}
