"""Lengths of rows, from row tables alone where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.read import column_index
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.formats.dataset.streaming.plan.build import page_elements, row_lengths
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.sampling import changed, lengths_of, sampled
from tests.support.builders.streams import MappedObjects, stream


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_lengths_are_those_of_the_rows(mapped: bool, codec: Codec) -> None:
    ds = sampled(mapped=mapped, codec=codec)
    assert row_lengths(ds, "tokens").values.tolist() == lengths_of(ds)
    assert row_lengths(ds, "split").values.tolist() == lengths_of(ds, "split")
    assert row_lengths(ds, "label").values.tolist() == ds["label"][:].tolist()


def test_patches_count_and_deleted_rows_do_not() -> None:
    ds = changed()
    assert row_lengths(ds, "tokens").values.tolist() == lengths_of(ds)
    assert page_elements(ds, "tokens") is None


def test_pages_tell_their_elements() -> None:
    ds = sampled()
    elements = page_elements(ds, "tokens")
    assert elements is not None
    assert int(elements.sum()) == sum(lengths_of(ds))


def test_only_row_tables_are_read_of_pages_that_are_not_compressed() -> None:
    objects = MemoryObjects()
    schema = Schema.of({"tokens": Tensor("int32", (None,))})
    rows = [{"tokens": np.zeros(length, np.int32)} for length in (20_000, 0, 30_000, 17)]
    ds = stored(objects, schema, [rows], page_bytes=1 << 20)
    column_index(ds, "tokens")
    objects.reads.clear()
    found = row_lengths(ds, "tokens")
    assert found.values.tolist() == [20_000, 0, 30_000, 17]
    assert found.read_bytes == sum(stop - start for _, start, stop in objects.reads) == 4 * 8


@given(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), max_size=20))
def test_lengths_count_along_the_open_dimension(dims: list[list[int]]) -> None:
    schema = Schema(
        (
            Column("known", Tensor("int16", (None, 3))),
            Column("open", Tensor("int16", (None, None))),
        )
    )
    rows = [
        {"known": np.zeros((a, 3), np.int16), "open": np.zeros((a, b), np.int16)} for a, b in dims
    ]
    ds = stored(MappedObjects(), schema, [rows])
    assert row_lengths(ds, "known").values.tolist() == [a for a, _ in dims]
    assert row_lengths(ds, "open").values.tolist() == [a * b for a, b in dims]


@pytest.mark.parametrize("column", ["x", "f", "b"])
def test_columns_without_lengths_are_refused(column: str) -> None:
    schema = Schema.of({"x": Tensor("int32", (4,)), "f": Scalar("float32"), "b": Scalar("bool")})
    with pytest.raises(InvalidInputError, match="no lengths"):
        row_lengths(stored(MappedObjects(), schema, []), column)


def test_numbers_that_are_no_lengths_are_refused() -> None:
    ds = stored(MappedObjects(), Schema.of({"n": "int64"}), [[{"n": 3}, {"n": -1}]])
    with pytest.raises(InvalidInputError, match="-1"):
        row_lengths(ds, "n")


def damaged(objects: MemoryObjects, old: int, new: int) -> None:
    """Change a number of 8 bytes, the first one found, in the largest object."""
    digest = max(objects.stored, key=lambda each: len(objects.stored[each]))
    data = objects.stored[digest]
    objects.stored[digest] = data.replace(old.to_bytes(8, "little"), new.to_bytes(8, "little"), 1)


def texts(objects: MemoryObjects) -> Any:
    rows = [{"t": "x" * length} for length in (300_001, 300_002, 300_003)]
    return stored(objects, Schema.of({"t": Text()}), [rows], page_bytes=4 << 20)


def test_a_row_table_that_contradicts_itself_is_found() -> None:
    objects = MappedObjects()
    ds = texts(objects)
    damaged(objects, 600_003, 1 << 40)
    with pytest.raises(CorruptError, match="column 't'"):
        row_lengths(ds, "t")


def test_a_row_table_that_lies_misplaces_rows_which_are_then_found_to_be_damaged() -> None:
    objects = MemoryObjects()
    ds = texts(objects)
    damaged(objects, 600_003, 600_004)
    assert row_lengths(ds, "t").values.tolist() == [300_001, 300_003, 300_002]
    with pytest.raises(CorruptError, match="column 't'"):
        list(stream(ds, batch_size=1, sampling=Sampling(bucket="t")))
