"""Arrow's expressions are read as trees; what is not understood is said to be unknown."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.dataset.selecting.expression import (
    ColumnRef,
    FunctionCall,
    Literal,
    Unknown,
    expression_tree,
    field_names,
)


def test_a_comparison_is_a_call_on_a_field_and_a_literal() -> None:
    found = expression_tree(pc.field("two words") > 3)
    assert found == FunctionCall("greater", (ColumnRef("two words"), Literal(pa.scalar(3))), {})


def test_equal_calls_follow_one_another_in_their_order() -> None:
    found = expression_tree((pc.field("a") > 1) & (pc.field("b") > 2))
    assert isinstance(found, FunctionCall)
    assert [each.arguments[0] for each in found.arguments] == [ColumnRef("a"), ColumnRef("b")]


def test_the_values_of_isin_are_options() -> None:
    found = expression_tree(pc.field("a").isin([3, 1]))
    assert found.options["value_set"].as_py() == [3, 1]


def test_of_fields_in_fields_only_the_column_is_known() -> None:
    found = expression_tree((pc.field("s", "inner") == 1) & (pc.field("a") == 1))
    assert found.arguments[0].arguments[0] == Unknown(frozenset({"s"}))
    assert field_names(found) == {"s", "a"}


def test_names_are_those_of_all_fields() -> None:
    found = expression_tree((pc.field("a") == pc.field("b")) | ~pc.field("c").is_null())
    assert field_names(found) == {"a", "b", "c"}


def test_a_single_field_and_a_single_literal_are_trees() -> None:
    assert expression_tree(pc.field("a")) == ColumnRef("a")
    assert expression_tree(pc.scalar(True)) == Literal(pa.scalar(True))
