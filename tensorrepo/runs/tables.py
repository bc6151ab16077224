"""Arrow tables of JSON documents: a row each, a column for each name that any of them has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN: Final = (bool, int, float, str, datetime)
_MOST_WHOLE: Final = 1 << 63


def table_of(documents: Sequence[dict[str, Any]]) -> pa.Table:
    """A row for each document; null where one lacks a name.

    Whole numbers and fractions of one name are float64. Values of several other types, lists and
    objects are JSON text.
    """
    import pyarrow as pa

    names = list(dict.fromkeys(name for document in documents for name in document))
    columns = {name: [document.get(name) for document in documents] for name in names}
    return pa.table({name: pa.array(_alike(values)) for name, values in columns.items()})


def _alike(values: list[Any]) -> list[Any]:
    """Values of one type, as Arrow asks for them."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    large = kinds == {int} and any(abs(value or 0) >= _MOST_WHOLE for value in values)
    if len(kinds) > 1 or large or not kinds <= set(_PLAIN):
        return [None if value is None else json.dumps(value) for value in values]
    return values
