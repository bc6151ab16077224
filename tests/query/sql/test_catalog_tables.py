"""`catalog.pages` says of every page what the manifests say, and reads no more than it must."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow.compute as pc
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.read import column_index
from tensorrepo.formats.dataset.selecting.expression import expression_tree
from tensorrepo.query.sql.pages_table import may_be_true

ROWS = 60_000


@pytest.fixture(scope="module")
def repo() -> tr.Repository:
    made = tr.init(f"memory://pages-{uuid4()}", author="Ada <ada@example.org>")
    numbers = np.arange(ROWS)
    wave = np.where(numbers < 9, np.nan, numbers).astype("f4")
    with made.transaction() as tx:
        columns = {"id": "uint64", "wave": "float32", "v": tr.Tensor("float32", (100,))}
        rows = tx.create_dataset("points", columns=columns)
        rows.append({"id": numbers.astype("u8"), "wave": wave, "v": np.zeros((ROWS, 100), "f4")})
        tx.create_dataset("small", columns={"n": "int8"}).append(
            {"n": np.arange(-3, 4, dtype="i1")}
        )
        tx.create_dataset("empty", columns={"n": "int8"})
    made.create_tag("v1")
    with made.transaction() as tx:
        tx.dataset("points").update([7], {"v": np.ones((1, 100), "f4")}).delete("id == 3")
    return made


def asked(repo: tr.Repository, query: str) -> list[dict[str, Any]]:
    return list(repo.sql(query))


def test_there_is_a_row_for_each_page_of_each_column(repo: tr.Repository) -> None:
    stored = repo.dataset("points").stored
    found = asked(
        repo,
        'SELECT "column", count(*) AS pages, sum("rows") AS n, sum(stored_bytes) AS bytes '
        "FROM catalog.pages WHERE path = 'datasets/points' AND NOT patch GROUP BY ALL",
    )
    indexes = {name: column_index(stored, name) for name in stored.schema.names}
    assert {each["column"]: (each["pages"], each["n"], each["bytes"]) for each in found} == {
        name: (index.pages, ROWS, int(index.entries["stored_bytes"].sum()))
        for name, index in indexes.items()
    }


def test_rows_and_chunks_are_those_of_the_index(repo: tr.Repository) -> None:
    index = column_index(repo.dataset("points").stored, "v")
    found = asked(
        repo,
        'SELECT first_row, "rows", "offset", chunk, form FROM catalog.pages '
        "WHERE \"column\" = 'v' AND NOT patch ORDER BY first_row",
    )
    assert [each["first_row"] for each in found] == index.first_row[:-1].tolist()
    assert [each["offset"] for each in found] == index.entries["offset"].tolist()
    chunks = [index.chunks[at].digest for at in index.chunk.tolist()]  # type: ignore[union-attr]
    assert [each["chunk"] for each in found] == chunks
    assert {each["form"] for each in found} == {"compressed"}


def test_statistics_are_numbers_and_exact_keys(repo: tr.Repository) -> None:
    [small] = asked(repo, "SELECT * FROM catalog.pages WHERE path = 'datasets/small'")
    assert (small["min"], small["max"], small["nulls"], small["is_sorted"]) == (-3, 3, 0, True)
    assert small["min_key"] < small["max_key"]
    assert small["chunk"] is None
    wave = asked(repo, "SELECT * FROM catalog.pages WHERE \"column\" = 'wave' ORDER BY first_row")
    assert (wave[0]["min"], wave[0]["has_nan"], wave[-1]["max"]) == (9, True, ROWS - 1)
    [v] = asked(repo, 'SELECT DISTINCT "min", min_key FROM catalog.pages WHERE "column" = \'v\'')
    assert v == {"min": None, "min_key": None}


def test_patches_are_told_apart(repo: tr.Repository) -> None:
    [patch] = asked(repo, "SELECT * FROM catalog.pages WHERE patch")
    assert (patch["column"], patch["rows"], patch["first_row"]) == ("v", 1, None)
    assert asked(repo, 'SELECT count(*) AS n FROM catalog."pages@v1" WHERE patch') == [{"n": 0}]


def test_it_joins_with_the_catalog(repo: tr.Repository) -> None:
    found = asked(
        repo,
        "SELECT v.rows AS n, sum(p.rows) AS of_pages FROM catalog.pages AS p "
        "JOIN catalog.dataset_version AS v ON v.digest = p.dataset "
        "WHERE \"column\" = 'id' GROUP BY ALL",
    )
    assert found == [{"n": ROWS - 1, "of_pages": ROWS}]


@pytest.mark.parametrize(
    "where",
    [
        "path = 'datasets/small'",
        "path IN ('datasets/small', 'datasets/none', 'datasets/nor')",
        "\"column\" = 'n'",
        "path <> 'datasets/points'",
        "(path = 'datasets/small' OR path = 'x') AND \"rows\" > 2",
    ],
)
def test_what_a_query_rules_out_is_not_read(repo: tr.Repository, where: str) -> None:
    found = repo.sql(f"SELECT count(*) AS n FROM catalog.pages WHERE {where}")
    assert list(found) == [{"n": 1}]
    assert found.scanned.rows == 1


def test_it_may_be_asked_by_who_is_not_trusted(repo: tr.Repository) -> None:
    query = "SELECT count(*) AS n FROM catalog.pages WHERE path = 'datasets/small'"
    assert list(repo.sql(query, untrusted=tr.QueryLimits(seconds=60))) == [{"n": 1}]


def test_an_empty_repository_has_no_pages() -> None:
    made = tr.init(f"memory://nopages-{uuid4()}", author="Ada <ada@example.org>")
    assert asked(made, "SELECT count(*) AS n FROM catalog.pages") == [{"n": 0}]


FIELD = pc.field


@pytest.mark.parametrize(
    ("where", "possible"),
    [
        (FIELD("path") == "a", True),
        (FIELD("path") == "b", False),
        (FIELD("path") != "a", False),
        (~(FIELD("path") == "a"), False),
        (FIELD("path").is_null(), False),
        (FIELD("path").is_valid(), True),
        (FIELD("path").isin(["b", "c"]), False),
        ((FIELD("path") == "b") & (FIELD("rows") > 3), False),
        ((FIELD("path") == "b") | (FIELD("rows") > 3), True),
        (FIELD("rows").is_null(), True),
        (FIELD("path") > "b", True),
    ],
)
def test_only_what_cannot_be_is_ruled_out(where: Any, possible: bool) -> None:
    assert may_be_true(expression_tree(where), {"path": "a"}) is possible
