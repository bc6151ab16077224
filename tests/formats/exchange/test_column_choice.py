from __future__ import annotations

import pytest

from tensorrepo.formats.dataset.schema.schema import Column, Scalar
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column, typed, without
from tensorrepo.formats.exchange.registry import read_object
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import rows_of, store

THERE = ["a", "b", "index"]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (ColumnChoice(), ["a", "b"]),
        (ColumnChoice(("index", "a")), ["index", "a"]),
        (ColumnChoice(exclude=("a",)), ["b"]),
        (ColumnChoice(types={"index": "int8"}), ["a", "b", "index"]),
    ],
)
def test_columns_are_chosen(choice: ColumnChoice, chosen: list[str]) -> None:
    assert choice.of(THERE, ["index"]) == chosen


@pytest.mark.parametrize(
    ("choice", "kind", "message"),
    [
        (ColumnChoice(("x", "a")), NotFoundError, "holds no column 'x'; there are 'a', 'b'"),
        (ColumnChoice(exclude=("x", "y")), NotFoundError, "holds no columns 'x', 'y'"),
        (ColumnChoice(types={"x": "int8"}), NotFoundError, "holds no column 'x'"),
        (ColumnChoice(exclude=("a", "b", "index")), InvalidInputError, "leaves no column"),
    ],
)
def test_columns_that_are_not_there_are_named(
    choice: ColumnChoice, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        choice.of(THERE)


def test_what_is_refused_is_refused_for_all_columns_at_once() -> None:
    def refuse(name: str) -> str:
        if name == "a":
            return name
        raise UnsupportedError(f"column {name!r}: odd. Cast it, or leave it out.")

    assert each_column(["a"], refuse) == ["a"]
    with pytest.raises(UnsupportedError) as told:
        each_column(["a", "b", "c"], refuse)
    assert str(told.value) == (
        "2 columns cannot be stored. column 'b': odd. column 'c': odd. "
        "Cast them, or leave them out: exclude=b,c"
    )


def test_a_source_gets_other_types_and_fewer_columns() -> None:
    source = read_object({"a": [1, 2], "b": ["x", "y"]})
    changed = typed(without(source, ("b",)), {"a": Column("a", "float32")})
    assert changed.schema.columns == (Column("a", Scalar("float32")),)
    assert rows_of(store(changed)) == [{"a": 1.0}, {"a": 2.0}]
