"""Names are what DuckDB takes for names: not what stands in text or comments."""

from __future__ import annotations

import pytest

from tensorrepo.query.sql.names import names_of, quoted
from tensorrepo.repo.errors import InvalidInputError


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a FROM fashion", ("SELECT",), ),
        ('FROM "fashion@v1"', ("fashion@v1",)),
        ('FROM datasets."a/b"', ("datasets", "a/b")),
        ("FROM catalog . models", ("catalog", "models")),
        ('FROM "one""two"', ('one"two',)),
        ('FROM "ü/ß", after', ("after",)),
    ],
)  # fmt: skip
def test_a_name_is_read_as_it_is_meant(query: str, expected: tuple[str, ...]) -> None:
    assert expected in names_of(query).paths


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'secret'",
        "SELECT 1 -- secret",
        "SELECT 1 /* secret */",
        "SELECT $$ secret $$",
        "SELECT e'\\' secret'",
        "SELECT 'it''s secret'",
        "",
        "SELECT 'secret",
    ],
)
def test_text_and_comments_hold_no_names(query: str) -> None:
    assert "secret" not in names_of(query).words


def test_chains_of_names_are_cut_where_no_table_is_called_so() -> None:
    found = names_of("SELECT a" + ".b" * 5_000 + '."c.d"')
    assert found.paths == (("SELECT",), ("a",), ("a", "b"))
    assert found.words == {"SELECT", "a", "b", "c.d"}


def test_text_that_utf8_lacks_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no text in UTF-8: character 8"):
        names_of("SELECT '\udcff'")


def test_any_name_is_quoted() -> None:
    assert quoted('a"; DROP TABLE x; --') == '"a""; DROP TABLE x; --"'
