"""Exact nearest neighbours against a loop over all rows in float64."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.common.dtypes import element_dtype
from tensorrepo.formats.dataset.pages.page import verify_page
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.reading import page_reader
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import ColumnType, Embedding, Tensor, Text
from tensorrepo.formats.dataset.searching import nearest, top_rows
from tensorrepo.formats.dataset.searching.nearest import METRICS, nearest_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

SEED = 11


def stored(kind: ColumnType, rows: Any, *, nullable: bool = False) -> StoredDataset:
    """A dataset of one column `v`, in pages of few rows."""
    objects = MemoryObjects()
    schema = Schema((Column("v", kind, nullable),))
    link = write_dataset(objects, schema, [{"v": rows}], page_bytes=512, rng=random.Random(SEED))
    return open_dataset(objects, link.digest)


def plainly(vectors: Any, query: Any, metric: str) -> list[float]:
    """Distances, row by row."""
    found = []
    for row in np.asarray(vectors).astype(np.float64):
        dot = float((row * query).sum())
        if metric == "l2":
            found.append(float(np.sqrt(((row - query) ** 2).sum())))
        elif metric == "dot":
            found.append(0.0 - dot)
        else:
            lengths = np.sqrt((row**2).sum()) * np.sqrt((query**2).sum())
            with np.errstate(invalid="ignore", divide="ignore"):
                found.append(float(np.clip(1 - dot / lengths, 0, 2)))
    return found


def ordered(distances: list[float], k: int) -> list[int]:
    there = [at for at, distance in enumerate(distances) if not np.isnan(distance)]
    return sorted(there, key=lambda at: (distances[at], at))[:k]


@st.composite
def searches(draw: st.DrawFn) -> tuple[str, Any, Any, int, str]:
    """Vectors of which many are equal, far from the origin, tiny or huge; and queries."""
    dtype = draw(st.sampled_from(["float32", "float64", "float16", "bfloat16", "int8", "uint8",
                                  "int32", "uint64", "float8_e5m2"]))  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dim, rows = draw(st.integers(1, 40)), draw(st.integers(1, 300))
    count = draw(st.sampled_from([1, 2, 3, 7]))
    scale = draw(st.sampled_from([1.0, 3.0, 1e-12, 1e-25, 1e12, 1e18]))
    if "float" not in dtype or "8" in dtype or "16" in dtype:
        scale = draw(st.sampled_from([1.0, 20.0]))
    shift = scale * draw(st.sampled_from([0.0, 0.0, 4.0]))
    few = draw(st.booleans())  # values, so that distances are equal
    numbers = rng.integers(0, 3, (rows + count, dim)) if few else rng.random((rows + count, dim))
    values = numbers * scale + shift
    vectors = values[:rows].astype(element_dtype(dtype))
    queries = vectors[:count] if draw(st.booleans()) else values[rows:]
    queries = np.atleast_2d(np.asarray(queries, np.float64))
    k, metric = draw(st.sampled_from([1, 3, 10, 1000])), draw(st.sampled_from(METRICS))
    if metric == "cosine":
        queries = np.where(queries.any(axis=1, keepdims=True), queries, 1.0)
    return dtype, vectors, queries, k, metric


@settings(max_examples=examples(25), deadline=None)
@given(searches())
def test_the_answer_is_that_of_a_loop_over_all_rows(search: tuple[str, Any, Any, int, str]) -> None:
    dtype, vectors, queries, k, metric = search
    dataset = stored(Embedding(dtype, vectors.shape[1]), vectors)
    for query, ranked in zip(queries, nearest_rows(dataset, "v", queries, k, metric), strict=True):
        expected = plainly(vectors, query, metric)
        order = ordered(expected, k)
        assert ranked.rows.tolist() == order
        assert ranked.keys.tolist() == [expected[at] for at in order]


def test_equal_distances_come_in_the_order_of_the_rows() -> None:
    vectors = np.tile(np.eye(4, dtype=np.float32), (100, 1))
    dataset = stored(Embedding("float32", 4), vectors)
    (ranked,) = nearest_rows(dataset, "v", np.zeros(4), 7)
    assert ranked.rows.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert ranked.keys.tolist() == [1.0] * 7


@pytest.mark.parametrize("metric", METRICS)
def test_an_answer_does_not_depend_on_how_much_is_worked_on_at_once(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(SEED)
    dataset = stored(Embedding("float32", 8), rng.random((500, 8), np.float32))
    queries = rng.random((9, 8))
    expected = nearest_rows(dataset, "v", queries, 5, metric)
    monkeypatch.setattr(nearest, "STEP_BYTES", 300)
    monkeypatch.setattr(nearest, "QUERIES_AT_ONCE", 4)
    monkeypatch.setattr(nearest, "_ONE_THREAD", 600)
    monkeypatch.setattr(top_rows, "_MERGED_AT_ONCE", 1)
    found = nearest_rows(dataset, "v", queries, 5, metric)
    assert [each.rows.tolist() for each in found] == [each.rows.tolist() for each in expected]
    assert [each.keys.tolist() for each in found] == [each.keys.tolist() for each in expected]


def test_nulls_and_nan_never_come() -> None:
    rows: list[Any] = [[0.0, 1.0], None, [float("nan"), 0.0], [0.0, 3.0]] * 50
    dataset = stored(Embedding("float32", 2), rows, nullable=True)
    (ranked,) = nearest_rows(dataset, "v", [0.0, 0.0], 1000)
    assert sorted(ranked.rows.tolist()) == [at for at in range(200) if at % 4 in (0, 3)]
    assert ranked.keys.tolist() == [1.0] * 50 + [3.0] * 50


def test_a_row_of_zeros_has_no_direction() -> None:
    dataset = stored(Embedding("float32", 2), np.array([[0, 0], [1, 0], [0, 0]], np.float32))
    (ranked,) = nearest_rows(dataset, "v", [1.0, 1.0], 3, "cosine")
    assert ranked.rows.tolist() == [1]


def test_infinite_vectors_are_infinitely_far() -> None:
    vectors = np.array([[np.inf, 0], [1, 0], [3e38, 3e38]], np.float32)
    (ranked,) = nearest_rows(stored(Embedding("float32", 2), vectors), "v", [0.0, 0.0], 3)
    assert ranked.rows.tolist() == [1, 2, 0]
    assert ranked.keys[2] == np.inf


def test_a_dataset_without_rows_has_no_nearest() -> None:
    dataset = stored(Embedding("float32", 2), np.zeros((0, 2), np.float32))
    (ranked,) = nearest_rows(dataset, "v", [0.0, 0.0])
    assert (len(ranked.rows), len(ranked.keys)) == (0, 0)


def test_a_damaged_page_is_found_before_it_answers() -> None:
    objects = MemoryObjects()
    vectors = np.arange(400_000, dtype=np.float32).reshape(-1, 4)
    schema = Schema.of({"v": Embedding("float32", 4)})
    link = write_dataset(objects, schema, [{"v": vectors}])
    marked = vectors[500].tobytes()
    (chunk,) = [digest for digest, data in objects.stored.items() if marked in data]
    damaged = bytearray(objects.stored[chunk])
    damaged[damaged.index(marked)] ^= 1
    objects.stored[chunk] = bytes(damaged)
    with pytest.raises(CorruptError, match="'v'"):
        nearest_rows(open_dataset(objects, link.digest), "v", np.zeros(4))


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (Text(), ["a"]),
        (Tensor("float32", (None,)), [np.zeros(2, np.float32)]),
        (Tensor("float32", (2, 2)), np.zeros((1, 2, 2), np.float32)),
        (Tensor("bool", (2,)), np.zeros((1, 2), np.bool_)),
        (Tensor("complex64", (2,)), np.zeros((1, 2), np.complex64)),
    ],
    ids=["text", "ragged", "matrix", "bool", "complex"],
)
def test_what_is_no_vector_of_numbers_is_refused(kind: ColumnType, rows: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"column 'v' is .*Embedding\(dtype, d\)"):
        nearest_rows(stored(kind, rows), "v", [0.0, 0.0])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ([0.0, 0.0], r"shape \(3,\).*got \(2,\)"),
        (np.zeros((1, 1, 3)), r"got \(1, 1, 3\)"),
        (1.0, r"got \(\)"),
        ([0.0, float("nan"), 0.0], "NaN or infinity"),
        ([0.0, float("inf"), 0.0], "NaN or infinity"),
        (["a", "b", "c"], "3 numbers"),
        ([[1.0], [2.0, 3.0]], "3 numbers"),
        ([True, False, True], "got bool"),
        ([1e200, 0.0, 0.0], "too long"),
        ([1e-200, 0.0, 0.0], "too short"),
    ],
)  # fmt: skip
def test_a_query_that_does_not_fit_is_refused(query: Any, told: str) -> None:
    dataset = stored(Embedding("float32", 3), np.zeros((2, 3), np.float32))
    with pytest.raises(InvalidInputError, match=told):
        nearest_rows(dataset, "v", query)


def test_other_arguments_are_refused() -> None:
    dataset = stored(Embedding("float32", 3), np.zeros((2, 3), np.float32))
    with pytest.raises(InvalidInputError, match="metric is 'l2' or 'cosine' or 'dot'"):
        nearest_rows(dataset, "v", np.zeros(3), metric="hamming")
    with pytest.raises(InvalidInputError, match="k is a whole number, at least 1"):
        nearest_rows(dataset, "v", np.zeros(3), 0)
    with pytest.raises(InvalidInputError, match="at most 4,194,304 are ranked at once"):
        nearest_rows(dataset, "v", np.zeros((5, 3)), 1_000_000)
    with pytest.raises(InvalidInputError, match="zeros has no direction"):
        nearest_rows(dataset, "v", np.zeros(3), metric="cosine")
    with pytest.raises(NotFoundError):
        nearest_rows(dataset, "w", np.zeros(3))


def test_no_queries_have_no_answers() -> None:
    dataset = stored(Embedding("float32", 3), np.zeros((2, 3), np.float32))
    assert nearest_rows(dataset, "v", np.zeros((0, 3))) == []


def test_mapped_bytes_are_verified_once_by_a_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[int] = []

    def counting(page: memoryview, entry: Any) -> None:
        verified.append(page.nbytes)
        verify_page(page, entry)

    monkeypatch.setattr(page_reader, "verify_page", counting)
    writer = ObjectWriter(ObjectStore(open_backend(str(tmp_path), environment={})), ())
    vectors = np.random.default_rng(SEED).random((20_000, 32), np.float32)
    link = write_dataset(writer, Schema.of({"v": Embedding("float32", 32)}), [{"v": vectors}])
    writer.flush()
    store = ObjectStore(open_backend(str(tmp_path), environment={}))
    dataset = open_dataset(store, link.digest)
    assert nearest_rows(dataset, "v", vectors[17_000], 1)[0].rows.tolist() == [17_000]
    assert sum(verified) >= vectors.nbytes
    verified.clear()
    assert nearest_rows(dataset, "v", vectors[3], 1)[0].rows.tolist() == [3]
    assert verified == []


def test_pages_of_a_store_that_maps_nothing_are_searched_alike(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path), environment={})
    writer = ObjectWriter(ObjectStore(backend), ())
    vectors = np.random.default_rng(SEED).random((20_000, 32), np.float32)
    link = write_dataset(writer, Schema.of({"v": Embedding("float32", 32)}), [{"v": vectors}])
    writer.flush()
    near = nearest_rows(open_dataset(ObjectStore(backend), link.digest), "v", vectors[3], 50)
    far = Unmapped(backend)
    found = nearest_rows(open_dataset(far, link.digest), "v", vectors[3], 50)
    assert found[0].rows.tolist() == near[0].rows.tolist()
    assert found[0].keys.tolist() == near[0].keys.tolist()


class Unmapped(ObjectStore):
    """A store as if it were not on this machine."""

    def map(self, link: ObjectLink) -> None:
        return None


@pytest.mark.soak
def test_memory_does_not_grow_with_the_column(tmp_path: Path) -> None:
    writer = ObjectWriter(ObjectStore(open_backend(str(tmp_path), environment={})), ())
    rng = np.random.default_rng(SEED)
    batches = ({"v": rng.random((50_000, 128), np.float32)} for _ in range(10))  # 256 MB
    link = write_dataset(writer, Schema.of({"v": Embedding("float32", 128)}), batches)
    writer.flush()
    dataset = open_dataset(Unmapped(open_backend(str(tmp_path), environment={})), link.digest)
    tracemalloc.start()
    try:
        nearest_rows(dataset, "v", rng.random((100, 128)), 10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 160 << 20  # pages that are kept and read ahead, and what is worked on at once
