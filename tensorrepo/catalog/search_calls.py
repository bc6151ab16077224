"""Answers of `nearest` and `search` in SQL: the SDK's, as tables with columns as SQL has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo import lazy
from tensorrepo.context import Context
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, narrowed
from tensorrepo.query.sql.pushdown import NUMBER, ROW_ID, DatasetTable, Scanned
from tensorrepo.repo.changes.revisions import split_at
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError


@dataclass(frozen=True, slots=True)
class SearchAnswers:
    """Answers calls of a query whose tables are of `ref`; see `AnswersCalls`."""

    context: Context
    ref: str
    scanned: Scanned

    def __call__(
        self, function: str, arguments: dict[str, Any], columns: frozenset[str] | None
    ) -> pa.Table:
        given = dict(arguments)
        rows = self._opened(_text(function, "dataset", given.pop("dataset")))
        column = _text(function, "column", given.pop("column"))
        query = given.pop("query")
        if function == "nearest":
            found = rows.nearest(column, _vector(query), columns=[column], **given)
        else:
            found = rows.search(column, _text(function, "query", query), columns=[column], **given)
        table = pa.table(
            {
                NUMBER: pa.array(found.rows, pa.int64()),
                ROW_ID: pa.array(found.row_ids, pa.string()),
                found.measure: pa.array(found.values, pa.float64()),
            }
        )
        taken = set(table.column_names)
        names = [
            name
            for name in rows.stored.schema.names
            if name.lower() not in taken and _is_wanted(rows.stored, name, columns)
        ]
        for name, values in self._read(rows.stored, found.rows, names).items():
            table = table.append_column(name, values)
        return table

    def _opened(self, name: str) -> Any:
        """A dataset or a view: ``photos``, ``photos@v1``."""
        place, ref = split_at(name) or (name, self.ref)
        try:
            return lazy.dataset_at(self.context, place.removeprefix("datasets/"), ref)
        except NotFoundError as error:
            try:
                return lazy.view_at(self.context, place.removeprefix("views/"), ref)
            except NotFoundError:
                raise error from None

    def _read(
        self, dataset: StoredDataset, numbers: Any, names: Sequence[str]
    ) -> dict[str, pa.ChunkedArray]:
        """Columns of some rows, in their order."""
        if not names:
            return {}
        physical = live_rows(dataset).physical(numbers)
        order = np.argsort(physical, kind="stable")
        some = narrowed(dataset, physical[order])
        read = DatasetTable(some, self.scanned).reader(names, None).read_all()
        back = pa.array(np.argsort(order, kind="stable"))
        return {name: read.column(name).take(back) for name in names}


def _is_wanted(dataset: StoredDataset, name: str, columns: frozenset[str] | None) -> bool:
    if columns is None:
        return name in dataset.schema.visible.names
    return name.lower() in {each.lower() for each in columns}


def _text(function: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"SQL: {name} of {function} is text, got {value!r:.80}")
    return value


def _vector(value: Any) -> Any:
    """Numbers as DuckDB gives them, which are decimals where they are written so."""
    try:
        return np.array([float(each) for each in value])
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"SQL: query of nearest is a list of numbers, got {value!r:.80}"
        ) from error
