"""Conditions by indexes of values: the rows are those of a scan, whatever is asked and changes."""

from __future__ import annotations

import operator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo.datasets import indexed_rows
from tensorrepo.datasets.indexed_rows import rows_by_index
from tensorrepo.datasets.sql_edit import row_selection
from tensorrepo.formats.dataset.schema.types import Scalar
from tensorrepo.formats.search_index import indexed_values, sorted_values
from tensorrepo.formats.search_index.stored_index import IndexFile, open_index, write_index
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.verbs.fsck import fsck
from tests.support.builders.literals import LITERALS

ADA = "Ada <ada@example.org>"
ROWS = 200
DAY, MOMENT = date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)
WORDS = ["", "a", "ab", "b", "é", "x" * 40, "x" * 40 + "y"]
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "i8": (Scalar("int8"), [-128, -1, 0, 1, 127]),
    "u64": (Scalar("uint64"), [0, 1, 7, 1 << 62]),
    "f16": (Scalar("float16"), [-1.5, -0.0, 0.0, 0.5, float("inf"), float("nan")]),
    "f32": (Scalar("float32"), [-1.5, -0.0, 0.0, 0.1, 3.0, float("nan")]),
    "f64": (Scalar("float64"), [-1.5, -0.0, 0.0, 0.1, 3.0, float("-inf")]),
    "flag": (Scalar("bool"), [True, False]),
    "label": (tr.ClassLabel(("cat", "dog", "eel")), [0, 1, 2]),
    "day": (tr.Date(), [DAY + timedelta(days=each) for each in range(4)]),
    "at": (tr.Timestamp("ms", "UTC"), [MOMENT + timedelta(seconds=each) for each in range(4)]),
    "price": (tr.Decimal(9, 2), [Decimal(each) / 4 for each in range(5)]),
    "word": (tr.Text(), WORDS[:5]),
    "text": (tr.Text(), WORDS),
    "raw": (tr.Bytes(), [b"", b"a", b"a\0", b"\xff", b"\xff\xff"]),
}
COMPARED = [operator.eq, operator.lt, operator.le, operator.gt, operator.ge, operator.ne]


@pytest.fixture(scope="module", autouse=True)
def _small_data_is_looked_up() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_values, "LEAST_ROWS", 0)
        patch.setattr(indexed_values, "MOST_SHARE", 10)
        patch.setattr(indexed_values, "MOST_READ_SHARE", 10)
        patch.setattr(sorted_values, "BLOCK_ROWS", 16)
        yield


def make(repo: Any, columns: dict[str, tuple[Any, list[Any]]], rows: int = ROWS) -> None:
    rng = np.random.default_rng(7)
    schema = {name: tr.Column(name, kind, nullable=True) for name, (kind, _) in columns.items()}
    values = {
        name: [([None] * (at % 2) + some)[at2 % (len(some) + at % 2)] for at2 in chosen]
        for at, (name, (_, some)) in enumerate(columns.items())
        for chosen in [rng.integers(0, 1 << 20, rows)]
    }
    with repo.transaction(message="rows") as tx:
        tx.create_dataset("d", columns=schema).append(values)
        for name in columns:
            tx.create_index("d", name, kind="btree")


@pytest.fixture(scope="module")
def repository() -> Any:
    repo = tr.init(f"memory://{uuid4()}", author=ADA)
    make(repo, COLUMNS)
    return repo


@pytest.fixture(scope="module")
def indexed(repository: Any) -> Any:
    return repository.dataset("d")


def _term(name: str) -> st.SearchStrategy[Any]:
    column, own = tr.col(name), st.sampled_from(COLUMNS[name][1])
    values = st.one_of(own, st.sampled_from(LITERALS), st.integers(-300, 300))
    compared = st.builds(lambda compare, x: compare(column, x), st.sampled_from(COMPARED), values)
    among = st.lists(own, max_size=3).map(column.isin)
    strange = st.sampled_from(LITERALS).map(lambda each: column.isin([each.as_py()]))
    terms = [compared, among, strange, st.just(column.is_null())]
    if name in ("word", "text"):
        patterns = st.builds(operator.add, st.sampled_from(WORDS), st.sampled_from(["%", "", "_%"]))
        terms.append(patterns.map(column.like))
    return st.one_of(terms)


CONDITIONS = st.recursive(
    st.sampled_from(sorted(COLUMNS)).flatmap(_term),
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner),
        st.builds(operator.or_, inner, inner),
        st.builds(operator.invert, inner),
    ),
    max_leaves=5,
)


def answer(ask: Any) -> Any:
    try:
        return ask().tolist()
    except InvalidInputError as error:
        return str(error)


@given(CONDITIONS)
def test_the_rows_of_a_condition_are_those_of_a_scan(indexed: Any, condition: Any) -> None:
    expected = answer(lambda: indexed.find(condition, exact=True))
    if isinstance(expected, str):
        return  # Arrow refuses to compare these, of which an index may know more
    assert answer(lambda: indexed.find(condition)) == expected
    some = indexed.select(rows=slice(3, None, 2))
    expected = answer(lambda: some.find(condition, exact=True))
    assert answer(lambda: some.find(condition)) == expected


@pytest.mark.parametrize(
    ("condition", "is_answered"),
    [
        ("i8 >= 0 and i8 < 2", True),
        ("1 > i8", True),
        ("i8 in (1, 127) or label == 'eel'", True),
        ("text like 'x%' and i8 != 3", True),
        ("flag", True),
        ("day == '2024-01-02' and price <= 0.5", True),
        ("starts_with(word, 'a')", True),
        ("i8 != 3", False),
        ("not (i8 == 3)", False),
        ("i8 is null or i8 == 3", False),
        ("i8 == 1 or i8 + 1 == 3", False),
        ("i8 == u64", False),
        ("i8 == 1.5", False),
        (tr.col("f32").isin([0.5]), False),
    ],
)
def test_comparisons_joined_by_and_and_or_are_looked_up(
    indexed: Any, condition: Any, is_answered: bool
) -> None:
    where = row_selection(indexed.stored, condition)
    assert (rows_by_index(indexed, where) is not None) == is_answered


def test_no_page_is_read_for_what_indexes_answer(
    indexed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("a page is read")

    monkeypatch.setattr(indexed_values, "read_columns", refused)
    where = (tr.col("i8") == 1) & (tr.col("word") == "ab") | tr.col("text").like("x%")
    assert len(indexed.find(where))
    with pytest.raises(AssertionError, match="a page is read"):
        indexed.find((tr.col("text") == "x" * 40) & (tr.col("i8") != 3))


def test_too_many_intervals_are_not_intersected(
    indexed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tr.col("i8").isin([0, 1, 127]) & tr.col("i8").isin([-1, 1]) & (tr.col("i8") < 99)
    expected = indexed.find(where, exact=True).tolist()
    assert indexed.find(where).tolist() == expected
    monkeypatch.setattr(indexed_values, "_MOST_PAIRS", 1)
    assert indexed.find(where).tolist() == expected


def test_many_rows_are_scanned(indexed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_values, "MOST_SHARE", 0.1)
    assert rows_by_index(indexed, tr.col("i8") >= -127) is None
    monkeypatch.setattr(indexed_values, "LEAST_ROWS", 1000)
    assert rows_by_index(indexed, tr.col("i8") == 99) is None


def test_streams_and_selections_ask_the_index(
    indexed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "i8 == 1 and word == 'ab'"
    rows = indexed.find(where, exact=True)
    asked = []
    ask = indexed_rows.rows_by_indexes
    monkeypatch.setattr(
        indexed_rows, "rows_by_indexes", lambda *each: asked.append(each) or ask(*each)
    )
    some = indexed.select(["i8", "word"], where=where)
    assert some.to_arrow()["word"].to_pylist() == ["ab"] * len(rows)
    stream = indexed.stream(batch_size=50, columns=["i8"], sampling=tr.Sampling(where=where))
    assert sum(len(batch["i8"]) for batch in stream) == len(rows)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "where",
    [
        "i8 = 1 AND word = 'ab'",
        "label = 'eel' AND i8 >= 1",
        "label_number = 1 AND i8 = 1",
        "price < 0.5 AND day > '2024-01-02'",
        "\"at\" = '2024-01-01 00:00:01+00' AND i8 IN (1, 127)",
        "text LIKE 'x%' AND f64 <= 0.1",
        "i8 = 1 AND row_number < 100",
    ],
)
def test_sql_reads_the_rows_that_an_index_proposes(repository: Any, where: str) -> None:
    query = f"SELECT row_number, i8, word FROM d WHERE {where} ORDER BY row_number"
    found = repository.sql(query)
    rows = found.arrow().to_pylist()
    assert 0 < len(rows) <= found.scanned.rows < ROWS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_values, "LEAST_ROWS", 1000)
        assert repository.sql(query).arrow().to_pylist() == rows


def forged(repo: Any, change: Any) -> list[str]:
    """What a deep fsck says of an index of five values one block of which was changed."""
    make(repo, {"i8": (Scalar("int8"), [5, 6])}, rows=8)
    with repo.transaction(message="forged") as tx:
        objects = tx.core.objects
        index = open_index(objects, tx.core.entry("indexes/d/i8.values").digest)
        (segment,) = index.segments
        block = bytearray(objects.get(segment.files[0].parts[0]).payload)
        change(block)
        part = objects.put(Kind.BLOB, bytes(block)).digest
        files = (IndexFile("0000", len(block), (part,)), *segment.files[1:])
        wrong = replace(index, segments=(replace(segment, files=files),))
        tx.core.stage("indexes/d/i8.values", write_index(objects, wrong)[1])
    return [each.problem for each in fsck(repo.context.core, ObjectTotals(), deep=True)]


def test_a_deep_fsck_compares_values_with_pages() -> None:
    assert not forged(tr.init(f"memory://{uuid4()}", author=ADA), lambda _block: None)
    other_value = forged(
        tr.init(f"memory://{uuid4()}", author=ADA), lambda block: block.__setitem__(0, 4)
    )
    assert ["the index says other values of column 'i8'" in each for each in other_value] == [True]
    place_twice = forged(
        tr.init(f"memory://{uuid4()}", author=ADA),
        lambda block: block.__setitem__(slice(8, 12), block[12:16]),
    )
    assert ["in 1 row, such as row" in each for each in place_twice] == [True]


def test_where_an_index_is_damaged_rows_are_scanned() -> None:
    repo = tr.init(f"memory://{uuid4()}", author=ADA)
    assert forged(repo, lambda block: block.__delitem__(slice(4)))
    ds, query = repo.dataset("d"), "select i8 from d where i8 = 5"
    with pytest.warns(match="no index of datasets/d was asked.*`tensorrepo index create`"):
        rows = ds.find("i8 = 5")
    assert 0 < len(rows) == len(ds.find("i8 = 5", exact=True))
    with pytest.warns(match="no index of datasets/d was asked"):
        assert repo.sql(query).arrow().num_rows == len(rows)
    with pytest.raises(InvalidInputError, match="other"):
        ds.find("other = 5")  # no index's fault


@pytest.mark.soak
def test_an_index_beside_one_of_words_has_a_path_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("lance", reason="indexes of words are made by pylance")
    repo = tr.init(tmp_path / "r", author=ADA)
    make(repo, {"text": (tr.Text(), ["red car", "sea"]), "x.values": COLUMNS["i8"]})
    with repo.transaction(message="words") as tx:
        assert tx.create_index("d", "text").anew == ""  # words, as for any text: brought up to date
        tx.create_index("d", "text", kind="text")
    column = repo.dataset("d").stored.schema.column("x.values")
    tree = repo.resolve("main").commit.tree
    paths = [path for path, _ in repo.context.core.entries(tree, "indexes/")]
    below = [each.removeprefix("indexes/d/") for each in paths]
    assert sorted(below) == [f"id-{column.id}.values", "text", "text.values"]
    ds = repo.dataset("d")
    assert len(ds.search("text", "car", 5)) == 5
    assert "by an index" in ds.search("text", "car", 5).told
    assert rows_by_index(ds, tr.col("text") == "sea") is not None


@pytest.mark.parametrize("exact", [False, True], ids=["index", "scan"])
@pytest.mark.parametrize("whole", [0, 1, 2**40])
def test_decimals_are_compared_with_whole_numbers(indexed: Any, whole: int, exact: bool) -> None:
    expected = indexed.find(tr.col("price") >= Decimal(whole), exact=True)
    assert indexed.find(tr.col("price") >= whole, exact=exact).tolist() == expected.tolist()


@pytest.mark.parametrize("exact", [False, True], ids=["index", "scan"])
def test_what_a_scan_refuses_no_index_answers(indexed: Any, exact: bool) -> None:
    with pytest.raises(tr.InvalidInputError, match=r"write decimal.Decimal\('1'\), not 1"):
        indexed.find(pc.field("price") == 0, exact=exact)
