"""Splits of a dataset: conditions by which each row lies in one part, by chance and for good.

A part is an interval of ``split_share(key, seed)``, a function of SQL whose values are even in
``[0, 1)``. It looks at nothing but its arguments, so a row's part does not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import fsum, isclose
from typing import Final

from tensorrepo.formats.common.arguments import mapping, real, text, whole
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.selecting.predicate import name_text
from tensorrepo.formats.dataset.selecting.sql_condition import operand_kind
from tensorrepo.query.sql.functions import SPLIT_SHARE
from tensorrepo.query.sql.pushdown import ROW_ID
from tensorrepo.repo.errors import InvalidInputError

_DIGITS: Final = 12  # of a bound: 0.1 + 0.2 is to be 0.3


def sides_of(
    schema: Schema, shares: Mapping[str, float], by: str | None, seed: int
) -> Iterator[tuple[str, str]]:
    """Names of parts, and conditions of their rows: every row fulfils exactly one.

    Raises:
        InvalidInputError: shares that do not add up to 1, or a column that no value can be told by.
        NotFoundError: no such column.
    """
    key = f"{SPLIT_SHARE}({_key(schema, by)}, {whole('seed', seed, 0)})"
    bounds = _bounds(mapping("shares", shares, "shares by name"))
    for name, (low, high) in bounds.items():
        wanted = [f"{key} >= {low!r}"] if low > 0 else []
        wanted += [f"{key} < {high!r}"] if high < 1 else []
        yield name, " and ".join(wanted) or f"{key} >= 0"


def _key(schema: Schema, by: str | None) -> str:
    if by is None:
        if any(name.lower() == ROW_ID for name in schema.names):
            raise InvalidInputError(
                f"a column of the dataset is called {ROW_ID!r}, and rows are parted by the ids of "
                "that name: say by which column, by=..., or rename the column"
            )
        return ROW_ID
    column = schema.column(text("by", by))
    if operand_kind(column.type) is None:
        raise InvalidInputError(
            f"rows cannot be parted by {by!r}, whose values are tensors: name a column of text, "
            "numbers, classes or moments"
        )
    return name_text(by)


def _bounds(shares: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The interval of each part; the next one begins where one ends, to the bit."""
    given = [real(f"the share of {name!r}", share, 0, 1) for name, share in shares.items()]
    if not given or not isclose(fsum(given), 1.0, abs_tol=1e-9):
        raise InvalidInputError(
            f"shares add up to 1, such as {{'train': 0.8, 'test': 0.2}}; got {dict(shares)!r:.200}"
        )
    ends = [round(fsum(given[: at + 1]), _DIGITS) for at in range(len(given))]
    ends[-1] = 1.0
    return dict(zip(shares, zip([0.0, *ends[:-1]], ends, strict=True), strict=True))
