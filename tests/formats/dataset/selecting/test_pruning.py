"""Pages are skipped where a predicate cannot be true, and no row is ever lost by it."""

from __future__ import annotations

import operator
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import add_column, widen_column
from tensorrepo.formats.dataset.pages.text_bounds import PREFIX_BYTES
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    open_dataset,
    read_rows,
)
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Schema, Text, Timestamp
from tensorrepo.formats.dataset.selecting.select_rows import comparable, find_rows, ranges_where
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tests.support.builders.datasets import stored
from tests.support.builders.literals import LITERALS as ANY_LITERALS
from tests.support.builders.literals import ORDERED_COLUMNS
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

a, b = pc.field("a"), pc.field("b")
PAGE = 16  # rows, of 8 bytes: what `page_bytes` below makes


def _dataset(objects: MemoryObjects, values: dict[str, Any], **types: Any) -> StoredDataset:
    columns = (Column(name, types.get(name, Scalar("int64")), nullable=True) for name in values)
    return stored(objects, Schema(tuple(columns)), [values], page_bytes=8 * PAGE)


def _ranges(dataset: StoredDataset, where: pc.Expression) -> list[list[int]]:
    return ranges_where(dataset, where).tolist()


@pytest.fixture(scope="module")
def ascending() -> StoredDataset:
    count = 10 * PAGE
    values = {"a": np.arange(count), "b": [None] * 80 + [1] * 80}
    return _dataset(MemoryObjects(), values)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (a == 20, [[16, 32]]),
        (a < 16, [[0, 16]]),
        (a <= 16, [[0, 32]]),
        (a >= 144, [[144, 160]]),
        (a > 159, []),
        (pc.scalar(3) > a, [[0, 16]]),
        (a.isin([1, 2, 159]), [[0, 16], [144, 160]]),
        ((a > 20) & (a < 30), [[16, 32]]),
        ((a < 3) | (a > 156), [[0, 16], [144, 160]]),
        (~(a < 150), [[144, 160]]),
        (b.is_null(), [[0, 80]]),
        (b.is_valid() & (a < 90), [[80, 96]]),
        (b == 1, [[80, 160]]),
        (b != 1, []),
        (a == 20.5, [[16, 32]]),
        (pc.if_else(a.is_valid(), a.isin([5]), pa.scalar(None, pa.bool_())), [[0, 16]]),
    ],
)
def test_only_pages_that_may_hold_such_rows_are_left(
    ascending: StoredDataset, where: pc.Expression, expected: list[list[int]]
) -> None:
    assert _ranges(ascending, where) == expected


@pytest.mark.parametrize(
    "where", [a + 1 == 3, a == b, pc.is_in(a + b, pa.array([1])), pc.scalar(True)]
)
def test_what_is_not_understood_skips_nothing(
    ascending: StoredDataset, where: pc.Expression
) -> None:
    assert _ranges(ascending, where) == [[0, 160]]


def test_of_columns_that_are_not_there_nothing_is_known(ascending: StoredDataset) -> None:
    nowhere = pc.field("nowhere")
    assert _ranges(ascending, nowhere == 3) == [[0, 160]]
    assert _ranges(ascending, (nowhere == 3) & (a < 16)) == [[0, 16]]
    assert _ranges(ascending, nowhere | (a < 16)) == [[0, 160]]


def test_nan_is_unequal_to_everything_and_nothing_else() -> None:
    values = {"a": np.concatenate([np.full(16, np.nan), np.arange(16.0)])}
    dataset = _dataset(MemoryObjects(), values, a=Scalar("float64"))
    assert _ranges(dataset, a != 100.0) == [[0, 32]]
    assert _ranges(dataset, a == 3.0) == [[16, 32]]
    assert _ranges(dataset, ~(a < 100.0)) == [[0, 16]]
    assert _ranges(dataset, pc.is_nan(a)) == [[0, 16]]


def test_moments_are_compared_in_the_unit_of_the_column() -> None:
    values = {"a": np.arange(32).astype("M8[s]")}
    dataset = _dataset(MemoryObjects(), values, a=Timestamp("s"))
    assert _ranges(dataset, a == pa.scalar(3_000, pa.timestamp("ms"))) == [[0, 16]]
    assert _ranges(dataset, a == pa.scalar(3_500, pa.timestamp("ms"))) == [[0, 32]]


def test_patches_widen_what_pages_say() -> None:
    objects = MemoryObjects()
    count = 4096
    before = stored(objects, Schema.of({"a": "int64"}), [{"a": np.arange(count)}], page_bytes=4096)
    link = update_rows(objects, before, [700], {"a": -5})
    patched = open_dataset(objects, link.digest)
    assert _ranges(patched, a == -5) == [[512, 1024]]
    assert _ranges(patched, a == 513) == [[512, 1024]]


def test_rows_without_pages_are_judged_by_their_default() -> None:
    objects = MemoryObjects()
    before = _dataset(objects, {"a": np.arange(32)})
    new = Column("b", Scalar("int64"), nullable=True, default=7)
    dataset = open_dataset(objects, add_column(objects, before, new).digest)
    assert _ranges(dataset, b == 7) == [[0, 32]]
    assert _ranges(dataset, b == 8) == []
    assert _ranges(dataset, b.is_null()) == []


def test_pages_of_a_narrower_type_are_compared_as_the_wider_one() -> None:
    objects = MemoryObjects()
    before = _dataset(objects, {"a": np.arange(-16, 16)}, a=Scalar("int16"))
    wide = open_dataset(objects, widen_column(objects, before, "a", Scalar("float64")).digest)
    assert find_rows(wide, a > 14.5).tolist() == [31]
    assert _ranges(wide, a > 99.5) == []


def test_deleted_rows_are_not_counted_among_those_found() -> None:
    objects = MemoryObjects()
    before = _dataset(objects, {"a": np.arange(64)})
    dataset = open_dataset(objects, delete_rows(objects, before, a < 20).digest)
    assert find_rows(dataset, a == 50).tolist() == [30]


# ------------------------------------------------------------------------------ text

t = pc.field("t")
# 32 bytes of a key are all but its last digit.
KEYS = [f"s3://bucket/train/{number:015d}.jpg" for number in range(160)]


@pytest.fixture(scope="module")
def keyed() -> StoredDataset:
    whole = {"t": [key.replace("s3", "gs", 1)[:20] + key[-8:] for key in KEYS], "u": KEYS}
    schema = Schema((Column("t", Text()), Column("u", Bytes(), nullable=True)))
    coded = [None if at < 20 else key.encode() for at, key in enumerate(whole["u"])]
    return stored(MemoryObjects(), schema, [whole | {"u": coded}], page_bytes=64 * PAGE)


@pytest.mark.parametrize(
    ("where", "pages"),
    [
        (t == "gs://bucket/train/000050.jpg", 1),
        (t < "gs://bucket/train/000001.jpg", 1),
        (t > "gs://bucket/train/0001", 3),
        (t >= "h", 0),
        (t.isin(["gs://bucket/train/000000.jpg", "gs://bucket/train/000159.jpg"]), 2),
        (t.isin(pa.array([], pa.string())), 0),
        (pc.match_like(t, "gs://bucket/train/00015%"), 1),
        (pc.starts_with(t, "s3"), 0),
        (pc.match_like(t, "%.jpg"), 7),
        (pc.match_like(t, "GS%", ignore_case=True), 7),
        (t == "a\0", 7),  # zeros at an end are not told from padding
        (pc.field("u") == KEYS[50].encode(), 1),  # ten numbers begin alike
        (pc.field("u") < KEYS[20].encode(), 2),
    ],
)
def test_pages_of_text_are_left_by_what_their_values_begin_with(
    keyed: StoredDataset, where: pc.Expression, pages: int
) -> None:
    ranges = ranges_where(keyed, where)
    index = column_index(keyed, "u" if "u" in str(where).split()[0] else "t")
    assert len(np.unique(index.page_of(_rows_of(ranges)))) == pages


def _rows_of(ranges: Any) -> Any:
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*each) for each in ranges)])


# ------------------------------------------------------------------------------ properties

LONG = "k" * PREFIX_BYTES
TEXTS = st.sampled_from(
    ["", "a", "a\0", "b", "\u00ff", "\U0010ffff", LONG[1:], LONG]
    + [LONG + end for end in ("a", "b", "\0")]
)
LITERALS = st.one_of(st.integers(-4, 4), st.sampled_from([0.5, -2.0, float("nan")]))
FIELDS = st.sampled_from([a, b])
COMPARISONS = st.builds(
    lambda field, name, value: getattr(field, name)(value),
    FIELDS,
    st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]),
    LITERALS,
)
PARTS = st.one_of(
    COMPARISONS,
    st.builds(lambda field: field.is_null(), FIELDS),
    st.builds(lambda field: field.is_null(nan_is_null=True), FIELDS),
    st.builds(lambda field: field.is_valid(), FIELDS),
    st.builds(lambda values: a.isin(pa.array(values, pa.int64())), st.lists(
        st.one_of(st.none(), st.integers(-4, 4)), max_size=3)),
    st.builds(lambda name, value: getattr(t, name)(value), st.sampled_from(
        ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]), TEXTS),
    st.builds(lambda values: t.isin(pa.array(values, pa.string())), st.lists(
        st.one_of(st.none(), TEXTS), max_size=3)),
    st.builds(lambda prefix: pc.match_like(t, prefix + "%"), TEXTS),
    st.builds(lambda prefix: pc.starts_with(t, prefix), TEXTS),
    st.builds(lambda values: b.isin(pa.array(values, pa.float32())), st.lists(
        st.sampled_from([float("nan"), 1.5, -0.0]), max_size=2)),
    st.just(pc.field("c")),
)  # fmt: skip
PREDICATES = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.builds(lambda one, two: one & two, inner, inner),
        st.builds(lambda one, two: one | two, inner, inner),
        st.builds(lambda one: ~one, inner),
    ),
    max_leaves=5,
)
NUMBERS = st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=40, max_size=40)
WORDS = st.lists(st.one_of(st.none(), TEXTS), min_size=40, max_size=40)
REALS = st.lists(
    st.one_of(st.none(), st.sampled_from([-0.0, 0.0, 1.5, float("nan"), -2.0])),
    min_size=40,
    max_size=40,
)


@settings(max_examples=examples(6))
@given(numbers=NUMBERS, reals=REALS, words=WORDS, where=PREDICATES, word=TEXTS,
       dead=st.sets(st.integers(0, 39)), set_to=st.integers(-3, 3),
       patched=st.sets(st.integers(0, 39), max_size=2))  # fmt: skip
def test_no_row_is_lost(
    numbers: list[Any],
    reals: list[Any],
    words: list[Any],
    where: Any,
    word: str,
    dead: set[int],
    set_to: int,
    patched: set[int],
) -> None:
    objects = MemoryObjects()
    schema = Schema(
        (
            Column("a", Scalar("int64"), nullable=True),
            Column("b", Scalar("float32"), nullable=True),
            Column("c", Scalar("bool"), nullable=True),
            Column("t", Text(), nullable=True),
        )
    )
    flags = [None if each is None else each > 0 for each in numbers]
    rows = {"a": numbers, "b": reals, "c": flags, "t": words}
    dataset = stored(objects, schema, [rows], page_bytes=64)
    open_again = partial(open_dataset, objects)
    dataset = open_again(
        update_rows(objects, dataset, sorted(patched), {"a": set_to, "t": word}).digest
    )
    dataset = open_again(delete_rows(objects, dataset, sorted(dead)).digest)
    table = dataset.to_arrow()
    expected = table.append_column("#", pa.array(range(len(dataset)))).filter(where)["#"]
    assert find_rows(dataset, where).tolist() == expected.to_pylist()


# ------------------------------------------------------------------------------ literals

COMPARED = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
AMONG = [lambda field, value: field.isin(pa.array([value])),
         lambda field, value: field.isin(pa.array([value, None], value.type))]  # fmt: skip
MIRRORED = [lambda field, value: pc.scalar(value) < field]


@cache
def _one_row_a_page(name: str) -> tuple[StoredDataset, pa.Table]:
    """A column of one type, and the same rows as Arrow has them."""
    kind, values = ORDERED_COLUMNS[name]
    column = Column("a", kind, nullable=True)
    rows = [*values, None]
    dataset = stored(MemoryObjects(), Schema((column,)), [{"a": rows}], page_bytes=1)
    every = comparable(dataset.schema.column("a"), read_rows(dataset, "a", slice(None)))
    return dataset, pa.table({"a": every, "#": range(len(rows))})


def _check_literal(name: str, where: pc.Expression) -> None:
    dataset, table = _one_row_a_page(name)
    try:
        expected = table.filter(where)["#"].to_pylist()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return  # Arrow does not compare these
    assert find_rows(dataset, where).tolist() == expected


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(ORDERED_COLUMNS)), st.sampled_from(ANY_LITERALS),
       st.sampled_from(COMPARED + AMONG + MIRRORED), st.booleans())  # fmt: skip
def test_any_literal_finds_what_arrow_finds_in_any_column(
    name: str, literal: pa.Scalar, applied: Any, negated: bool
) -> None:
    where = applied(a, literal)
    _check_literal(name, ~where if negated else where)


def test_among_float32_a_literal_is_the_one_next_to_it() -> None:
    dataset, _ = _one_row_a_page("float32")
    assert find_rows(dataset, a.isin([0.1])).tolist() == [4]
    assert find_rows(dataset, a == 0.1).tolist() == []
