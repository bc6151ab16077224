"""Values are written so that both databases hold them alike."""

from __future__ import annotations

import pytest

from tensorrepo.query.sync.loader import as_json, bounded, number


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.5, (0.5, "finite")),
        (3, (3.0, "finite")),
        (float("nan"), (None, "nan")),
        (float("inf"), (None, "+inf")),
        (float("-inf"), (None, "-inf")),
    ],
)
def test_a_number_that_is_none_has_a_kind(value: float, told: tuple[float | None, str]) -> None:
    assert number(value) == told
    assert bounded(value) == told[0]


def test_equal_values_are_equal_text() -> None:
    assert as_json({"b": [1, None], "a": "é"}) == as_json({"a": "é", "b": [1, None]})
    assert as_json({"b": [1, None], "a": "é"}) == '{"a":"é","b":[1,null]}'
