"""What is stored: little, once, and nothing of it reachable when a row does not fit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata import boundaries, span_write
from tensorrepo.formats.dataset.metadata.chunk import decode_footer
from tensorrepo.formats.dataset.metadata.manifest import INLINE_LEAF_BYTES
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    dataset_leaves,
    open_dataset,
)
from tensorrepo.formats.dataset.schema.coerce import LastingBatch
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import Rows, datasets, same_rows, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import soaking
from tests.support.faults.damage import flipped

MIXED = Schema(
    (
        Column("image", Image("png")),
        Column("label", ClassLabel(("cat", "dog"))),
        Column("x", Tensor("float32", (80,))),
        Column("r", Tensor("int16", (None, 2))),
        Column("t", Text(), nullable=True),
    )
)


def _rows(count: int, width: int = 300) -> Rows:
    return [
        {
            "image": bytes([at % 256]) * width,
            "label": np.int64(at % 2),
            "x": np.full(80, at, np.float32),
            "r": np.full((at % 3, 2), at, np.int16),
            "t": None if at % 4 == 0 else f"row {at}",
        }
        for at in range(count)
    ]


def _kinds(objects: MemoryObjects) -> list[str]:
    return sorted(link.kind.label for link in objects.links.values())


# ------------------------------------------------------------------------------ damage


def _everything(dataset: StoredDataset) -> Rows:
    return list(open_dataset(dataset.objects, dataset.digest))


@pytest.mark.parametrize("width", [20, 4000])  # all in the root; chunks of their own
def test_no_flipped_byte_of_any_object_goes_unnoticed(width: int) -> None:
    objects = MemoryObjects()
    rows = _rows(8, width)
    dataset = stored(objects, MIXED, [rows])
    assert same_rows(_everything(dataset), rows)
    payload_starts = {d: len(s) - _payload_bytes(s) for d, s in objects.stored.items()}
    wrong = []
    for digest, whole in dict(objects.stored).items():
        ranged = not objects.links[digest].kind.compressible
        footer = len(decode_footer_bytes(whole)) if ranged else 0
        start = payload_starts[digest] if ranged else 0
        step = (1 if soaking() else 5) if width < 100 else (97 if soaking() else 401)
        for at in range(start, len(whole) - footer, step):
            objects.stored[digest] = flipped(whole, at, 0x04)
            try:
                _everything(dataset)
                wrong.append((digest, at))
            except CorruptError:
                pass
        objects.stored[digest] = whole
    assert wrong == []


def _payload_bytes(whole: bytes) -> int:
    return int.from_bytes(whole[16:24], "little")


def decode_footer_bytes(whole: bytes) -> bytes:
    """The footer and trailer of a stored chunk: readers take the index's word instead."""
    size = int.from_bytes(whole[-24:-16], "little")
    return whole[-24 - size :]


# ------------------------------------------------------------------------------ small


def test_a_small_dataset_is_one_object() -> None:
    objects = MemoryObjects()
    stored(objects, MIXED, [_rows(10)])
    assert _kinds(objects) == ["dataset"]


def test_a_small_append_writes_one_object() -> None:
    objects = MemoryObjects()
    base = stored(objects, MIXED, [_rows(3000)])
    before = _kinds(objects)
    grown = stored(objects, MIXED, [_rows(5)], 1, base=base)
    assert sorted([*before, "dataset"]) == _kinds(objects)
    assert same_rows(list(grown), _rows(3000) + _rows(5))
    assert objects.links[grown.digest].bytes < 90_000


def test_many_small_appends_come_together_in_chunks() -> None:
    objects = MemoryObjects()
    dataset = stored(objects, MIXED, [])
    for at in range(30):
        dataset = stored(objects, MIXED, [_rows(4)], at, base=dataset)
    assert same_rows(list(dataset), _rows(4) * 30)
    assert len(column_index(dataset, "image").chunks) < 10
    assert dataset.root.rows == 120


def test_a_dataset_appended_in_parts_has_the_statistics_of_all_its_rows() -> None:
    objects = MemoryObjects()
    schema = Schema((Column("n", Scalar("int32"), nullable=True),))
    first = stored(objects, schema, [{"n": [5, None]}])
    grown = stored(objects, schema, [{"n": [-7, 3, None]}], 1, base=first)
    (found,) = grown.root.statistics
    assert found.nulls == 2
    assert (found.min, found.max) == ((1 << 63) - 7, (1 << 63) + 5)


# ------------------------------------------------------------------------------ large


def test_chunks_repeat_their_index_in_a_footer() -> None:
    objects = MemoryObjects()
    dataset = stored(objects, MIXED, [_rows(300)], page_bytes=4096, budget_bytes=1 << 18)
    index = column_index(dataset, "image")
    for number, chunk in enumerate(index.chunks):
        footer = decode_footer(objects.get(chunk.digest).payload)  # type: ignore[union-attr]
        ((name, storage, entries, tags),) = footer
        mine = index.chunk == number
        assert (name, storage) == (index.id, index.storage)
        assert entries.tobytes() == index.entries[mine].tobytes()
        assert tags.tobytes() == index.tags[mine].tobytes()


CUT_BYTES = {"MIN_BYTES": 2 << 10, "MEAN_BYTES": 6 << 10, "MAX_BYTES": 12 << 10}


def _many(seed: int) -> StoredDataset:
    """Hundreds of fragments, and boundaries close enough to cut leaves and page indexes."""
    schema = Schema.of({"x": Tensor("uint8", (64,)), "y": "int32"})
    rows = 26_000
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 64), np.uint8)
    batch = {"x": pixels, "y": np.arange(rows)}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in CUT_BYTES.items():
            patch.setattr(boundaries, name, size)
        patch.setattr(span_write, "INLINE_INDEX_BYTES", 1 << 10)
        return stored(MemoryObjects(), schema, [batch], seed, page_bytes=256, budget_bytes=1024)


@pytest.fixture(scope="module")
def many() -> StoredDataset:
    return _many(0)


@pytest.mark.soak
def test_equal_rows_make_equal_chunks_whatever_their_ids(many: StoredDataset) -> None:
    other = _many(1)
    assert other.digest != many.digest
    for name in many.schema.names:
        one, two = (column_index(dataset, name).chunks for dataset in (many, other))
        assert one == two
        assert len(one) > 1


def test_leaves_and_indexes_are_cut_within_bounds(many: StoredDataset) -> None:
    assert len(many.root.leaves) > 2
    assert [len(entry.digest) for entry in many.root.leaves[:-1]] == [32] * (
        len(many.root.leaves) - 1
    )
    assert len(many.root.leaves[-1].payload) < INLINE_LEAF_BYTES
    # What is cut are records and entries: links and inline page indexes come on top.
    for leaf, _ in dataset_leaves(many)[:-1]:
        assert CUT_BYTES["MIN_BYTES"] <= leaf.fragments.nbytes <= CUT_BYTES["MAX_BYTES"]
        assert len(leaf.spans) > 2
    assert many["y"][:].tolist() == list(range(26_000))


def test_an_append_leaves_all_but_the_tail_as_it_is(many: StoredDataset) -> None:
    objects: Any = many.objects
    before = set(objects.stored)
    batch = {"x": np.zeros((3, 64), np.uint8), "y": [1, 2, 3]}
    grown = stored(objects, many.schema, [batch], 1, base=many)
    fresh = set(objects.stored) - before
    assert len(grown) == len(many) + 3
    assert grown["y"][-4:].tolist() == [25_999, 1, 2, 3]
    assert sum(objects.links[digest].bytes for digest in fresh) < 8 * CUT_BYTES["MAX_BYTES"]
    old = [entry.digest for entry in many.root.leaves]
    assert [entry.digest for entry in grown.root.leaves][: len(old) - 1] == old[:-1]


def test_equal_rows_with_equal_uids_make_equal_roots() -> None:
    one, two = (stored(MemoryObjects(), MIXED, [_rows(50)], 7) for _ in range(2))
    assert one.digest == two.digest


def test_where_batches_end_does_not_show() -> None:
    whole = stored(MemoryObjects(), MIXED, [_rows(200)], 7, page_bytes=2048)
    rows = _rows(200)
    parts = [rows[at : at + 50] for at in range(0, 200, 50)]
    assert stored(MemoryObjects(), MIXED, parts, 7, page_bytes=2048).digest == whole.digest


@given(datasets(), st.integers(0, 40))
def test_appending_is_concatenation(drawn: tuple[Schema, Rows], cut: int) -> None:
    schema, rows = drawn
    objects = MemoryObjects()
    options: dict[str, Any] = {"page_bytes": 256, "budget_bytes": 4096}
    first = stored(objects, schema, [rows[:cut]], **options)
    second = stored(objects, schema, [rows[cut:]], 1, base=first, **options)
    assert second.schema == first.schema
    assert same_rows(list(second), rows)


def test_a_batch_may_be_reused_by_its_owner() -> None:
    schema = Schema.of({"x": Tensor("int32", (100,))})
    buffer = np.zeros((30, 100), np.int32)

    def batches() -> Any:
        for at in range(20):
            buffer[:] = at
            yield {"x": buffer}

    found = stored(MemoryObjects(), schema, batches(), page_bytes=1 << 14)["x"][:]
    assert isinstance(found, np.ndarray)
    assert found[:, 0].tolist() == [at for at in range(20) for _ in range(30)]


def test_batches_that_last_and_others_may_take_turns() -> None:
    schema = Schema.of({"x": Tensor("int32", (100,)), "n": "int8"})
    buffer = np.zeros((30, 100), np.int32)

    def batches() -> Any:
        for at in range(0, 20, 2):
            buffer[:] = at
            yield {"x": buffer, "n": np.full(30, at, np.int8)}
            lasting = np.full((30, 100), at + 1, np.int32)
            yield LastingBatch(x=lasting, n=np.full(30, at + 1, np.int8))

    dataset = stored(MemoryObjects(), schema, batches(), page_bytes=1 << 14)
    found = dataset["x"][:]
    assert isinstance(found, np.ndarray)
    assert found[:, 0].tolist() == [at for at in range(20) for _ in range(30)]


def test_a_row_larger_than_a_page_is_a_page() -> None:
    schema = Schema.of({"b": Bytes(), "n": "int8"})
    rows = [{"b": b"a" * 5000, "n": 1}, {"b": b"", "n": 2}, {"b": b"c" * 9000, "n": 3}]
    dataset = stored(MemoryObjects(), schema, [rows], page_bytes=1000, budget_bytes=16_000)
    assert [row["b"] for row in dataset] == [row["b"] for row in rows]
    assert 3 >= column_index(dataset, "b").pages >= 2


def test_progress_counts_rows_and_bytes() -> None:
    seen: list[tuple[int, int]] = []
    schema = Schema.of({"x": Tensor("uint8", (10,))})
    batch = {"x": np.zeros((7, 10), np.uint8)}
    write_dataset(
        MemoryObjects(), schema, [batch] * 3, progress=lambda rows, size: seen.append((rows, size))
    )
    assert seen == [(7, 70), (14, 140), (21, 210)]


def test_arrow_tables_are_taken_in() -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int32()), "t": ["ä", None]})
    dataset = stored(MemoryObjects(), Schema.from_arrow(table.schema), [table])
    assert [(row["n"], row["t"]) for row in dataset] == [(1, "ä"), (2, None)]


# ------------------------------------------------------------------------------ refusals

SIMPLE = Schema(
    (
        Column("n", Scalar("int32")),
        Column("x", Tensor("float32", (2,)), nullable=True),
        Column("c", ClassLabel(("cat", "dog")), nullable=True),
        Column("t", Text(), nullable=True),
        Column("j", Json(), nullable=True),
        Column("r", Tensor("int16", (None, 2)), nullable=True),
    )
)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"n": float("nan")}, r"row 2, column 'n': expected int32, found nan"),
        ({"n": 1.5}, r"row 2, column 'n': expected int32, found 1.5"),
        ({"n": 2**31}, r"row 2, column 'n': expected int32, found 2147483648"),
        ({"n": 2**70}, r"row 2, column 'n': expected int32, found "),
        ({"n": "7"}, r"row 2, column 'n': expected int32, found '7'"),
        ({"n": None}, r"row 2, column 'n': expected a value .*, found null"),
        ({"n": [1]}, r"row 2, column 'n': expected shape \(\), found shape \(1,\)"),
        ({}, r"row 2, column 'n': expected a value .*, found null"),
        ({"n": 1, "z": 1}, r"row 2: unexpected column 'z'"),
        ({"n": 1, "x": [1.0]}, r"row 2, column 'x': expected shape \(2,\), found shape \(1,\)"),
        ({"n": 1, "x": [1e300, 1]}, r"row 2, column 'x': expected float32, found 1e\+300"),
        ({"n": 1, "c": "bird"}, r"row 2, column 'c': expected a class \(cat, dog\), found 'bird'"),
        ({"n": 1, "c": 2}, r"row 2, column 'c': expected a class in \[0, 2\), found 2"),
        ({"n": 1, "c": float("nan")}, r"row 2, column 'c': expected int64, found nan"),
        ({"n": 1, "t": b"x"}, r"row 2, column 't': expected text, found bytes b'x'"),
        ({"n": 1, "t": "\ud800"}, r"row 2, column 't': expected text, found .*surrogates"),
        (
            {"n": 1, "j": float("nan")},
            r"row 2, column 'j': expected a JSON value, found Out of range",
        ),
        ({"n": 1, "j": object()}, r"row 2, column 'j': expected a JSON value, found object"),
        ({"n": 1, "r": [[1, 2, 3]]}, r"row 2, column 'r': expected shape \(None, 2\), found shape"),
        ({"n": 1, "r": [[1, 70000]]}, r"row 2, column 'r': expected int16, found 70000"),
        ({"n": 1, "r": [[1], [2, 3]]}, r"row 2, column 'r': expected shape .*different lengths"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: dict[str, Any], message: str) -> None:
    objects = MemoryObjects()
    with pytest.raises(InvalidInputError, match=message):
        stored(objects, SIMPLE, [[{"n": 1}], [{"n": 2}, row]])
    assert not any(link.kind is Kind.DATASET for link in objects.links.values())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"n": np.zeros((3, 2))}, r"row 0, column 'n': expected shape \(\), found shape \(2,\)"),
        ({"n": np.zeros(3), "t": ["a"]}, "column 't' has 1 rows, the columns before it 3"),
        ({"n": np.array([1, 2, np.nan])}, "row 2, column 'n': expected int32, found nan"),
        ({"n": np.array(["a"])}, "row 0, column 'n': expected int32, found .*'a'"),
        ({"t": ["a"]}, "column 'n' is missing"),
        ({"n": [1], "t": "a"}, "column 't': expected a sequence of rows, found str"),
        ({"n": 5}, "row 0, column 'n': expected shape"),
        (pa.table({"n": ["1", "b"]}), "row 0, column 'n': expected int32, found '1'"),
        (pa.table({"n": [1.0, None]}), "row 1, column 'n': expected a value"),
        (pa.table({"n": [1, 2**40]}), "row 1, column 'n': expected int32, found 1099511627776"),
        ([{"n": 1}, 7], "row 1: expected a mapping of columns, found int"),
    ],
)
def test_a_batch_that_does_not_fit_is_explained(batch: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stored(MemoryObjects(), SIMPLE, [batch])


def test_appending_other_columns_is_refused() -> None:
    objects = MemoryObjects()
    base = stored(objects, Schema.of({"n": "int32"}), [])
    with pytest.raises(InvalidInputError, match=r"column 'n' is .*int64.*the dataset has .*int32"):
        stored(objects, Schema.of({"n": "int64"}), [], base=base)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False], [1, 0]),
        (np.array([1.0, 2.0]), [1, 2]),
        (np.array([1, 2], ">i8"), [1, 2]),
        (np.array([1, 2], np.uint64), [1, 2]),
        (range(2), [0, 1]),
        (pa.chunked_array([[1], [2]]), [1, 2]),
        (np.ma.array([1, 2]), [1, 2]),
    ],
)
def test_numbers_are_converted_where_nothing_is_lost(values: Any, expected: list[int]) -> None:
    dataset = stored(MemoryObjects(), Schema.of({"n": "int32"}), [{"n": values}])
    assert dataset["n"][:].tolist() == expected  # type: ignore[union-attr]  # an array


def test_class_names_become_numbers() -> None:
    schema = Schema.of({"c": ClassLabel(("cat", "dog"))})
    batches = [{"c": ["dog", "cat"]}, {"c": pa.array(["cat"]).dictionary_encode()}, {"c": [1]}]
    assert stored(MemoryObjects(), schema, batches)["c"][:].tolist() == [1, 0, 0, 1]  # type: ignore[union-attr]


def test_a_failing_store_fails_the_write() -> None:
    class Full(MemoryObjects):
        def put(self, kind: Kind, *args: Any, **kwargs: Any) -> Any:
            if kind is Kind.CHUNK:
                raise CorruptError("disk on fire")
            return super().put(kind, *args, **kwargs)

    with pytest.raises(Error, match="disk on fire"):
        stored(Full(), MIXED, [_rows(2000)], budget_bytes=1 << 16)


def test_every_fragment_has_a_uid_of_its_own(many: StoredDataset) -> None:
    leaves = [leaf for leaf, _ in dataset_leaves(many)]
    uids = [uid for leaf in leaves for uid in leaf.fragments["uid"].tolist()]
    assert len(set(uids)) == len(uids) > 400


def test_random_uids_differ_between_writes() -> None:
    link = write_dataset(MemoryObjects(), SIMPLE, [[{"n": 1}]])
    again = write_dataset(MemoryObjects(), SIMPLE, [[{"n": 1}]], rng=random.Random(1))
    assert link.digest != again.digest
