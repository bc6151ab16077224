"""Selections: rows and columns of a dataset that were asked for, and not looked for yet.

A view is what became of one that was kept, with the rows that it had then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorrepo import lazy
from tensorrepo.datasets.dataset import Dataset, RowsOfDataset
from tensorrepo.datasets.sql_edit import fitting_rows, row_selection
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    narrowed,
    projected,
    resolve_rows,
    row_id_table,
)
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.selecting.predicate import (
    MOST_TEXT,
    joined,
    row_text,
    where_text,
)
from tensorrepo.formats.dataset.selecting.select_rows import Where, choose_rows
from tensorrepo.formats.dataset.selecting.sql_condition import read_condition
from tensorrepo.formats.dataset.streaming.checks import column_names
from tensorrepo.formats.purged import telling_purged
from tensorrepo.formats.views import StoredView, make_view
from tensorrepo.query.sql.names import quoted
from tensorrepo.query.sql.results import SHOWN_ROWS
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest


class Selection(RowsOfDataset):
    """Rows and columns of a dataset that were asked for, and are looked for when they are needed.

    See `Dataset.select`. `source` is the dataset, view or selection that was asked.
    """

    def __init__(
        self,
        source: Dataset,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        rows: Any = None,
    ) -> None:
        """Made by `Dataset.select`."""
        super().__init__(source.context, source.path, source.commit, None)
        self.source, self._where, self._rows = source, where, rows
        self._columns = None if columns is None else column_names("columns", columns)
        self.every_column  # noqa: B018 - refuses columns that are not there

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def digest(self) -> Digest:
        """What the rows were asked of, in whatever commit."""
        return self.source.digest

    @property
    def schema(self) -> Schema:
        return self.every_column.visible

    @property
    def every_column(self) -> Schema:
        every = self.source.every_column
        return every if self._columns is None else every.projected(self._columns)

    @property
    def stored(self) -> StoredDataset:
        if self._stored is None:
            chosen = projected(self.whole.stored, self.every_column)
            self._stored = chosen if self.is_every_row else narrowed(chosen, self.physical_rows())
        return self._stored

    @property
    def sql(self) -> str:
        """A query for the ids of these rows; empty where no text says which they are."""
        said, asked = self.said(), self.asked
        if said is None:
            return ""
        query = f"SELECT row_id FROM {quoted(asked.path)}"  # noqa: S608
        if not said:
            return query
        condition = read_condition(joined(said), asked.stored.schema)
        return f"{query} WHERE {condition.sql}"

    @property
    def selected(self) -> dict[str, Any]:
        said, told = self.said(look=True), self.asked.selected
        if said is None or len(text := joined(said) if said else "") > MOST_TEXT:
            return {}
        return told | ({"where": text} if text else {})

    def as_view(self) -> StoredView:
        whole = self.whole.stored
        ids = row_id_table(whole).of(self.physical_rows())
        return make_view(whole, ids, self.sql, self.whole.path, self.whole.commit)

    def physical_rows(self, most: int | None = None) -> Ints:
        if self._stored is not None:
            return super().physical_rows(most)
        if self._where is None and self._rows is None:
            return self.source.physical_rows(most)
        rows = self._rows
        if self._where is None and isinstance(rows, slice) and _begins_there(rows):
            least, end = rows.start or 0, rows.stop
            stop = end if most is None else min(end, least + most)
            return self.source.physical_rows(stop)[least:stop]
        return self._chosen(most)[:most]

    def _chosen(self, most: int | None) -> Ints:
        """Physical rows that were asked for by number or by a condition, or by both."""
        base, where = self.source.stored, self._where
        named = None if self._rows is None else _named(base, self._rows)
        if where is None:
            assert named is not None, "the caller looked"
            return named
        with telling_purged(base.objects, [self.path], [str(where)]):
            few = most if named is None else None
            condition = row_selection(base, where, few)
            fitting = lazy.rows_by_index(self.source, condition, few)
            if fitting is None:
                fitting = fitting_rows(base, condition, few)
        return fitting if named is None else np.intersect1d(named, fitting, assume_unique=True)

    @property
    def is_every_row(self) -> bool:
        return self._where is None and self._rows is None and self.source.is_every_row

    @property
    def asked(self) -> Dataset:
        return self.source.asked

    def said(self, *, look: bool = False) -> list[str] | None:
        before = self.source.said(look=look)
        if before is None:
            return None
        of_rows = None if self._rows is None else row_text(self._rows, counts=not before)
        if of_rows is None and look:
            of_rows = self._bounds()
        of_where = None if self._where is None else where_text(self._where, counts=not before)
        wanted = [self._rows is not None, self._where is not None]
        told = [each for each in (of_rows, of_where) if each is not None]
        return [*before, *told] if len(told) == sum(wanted) else None

    def _bounds(self) -> str | None:
        """Between which rows of the dataset the first ones of a condition fell; looked for.

        Of another version this is no query for them: there they may be others.
        """
        rows = self._rows
        if not isinstance(rows, slice) or not _begins_there(rows):
            return None
        first = self.source.physical_rows(rows.stop)[rows.start or 0 :]
        numbers = live_rows(self.asked.stored).live(first)
        if not len(numbers):
            return None
        least = f"row_number >= {numbers[0]} and " if rows.start else ""
        return f"{least}row_number <= {numbers[-1]}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self.source, self._columns, self._where, self._rows)

    @property
    def title(self) -> str:
        told = joined(said) if (said := self.said()) else ""
        is_known = self._is_few or self._stored is not None
        rows = counted(len(self), "row") if is_known else "some rows"
        where = f", where {told:.200}" if told else ""
        return f"<{rows} of {self.name}: {', '.join(self.columns)}{where}>"

    def __repr__(self) -> str:
        return self.to_table().text() if self._is_few else self.title

    @property
    def _is_few(self) -> bool:
        """Whether these are some first rows, so that looking at them reads little."""
        rows = self._rows
        if self._where is not None or not isinstance(rows, slice) or not _begins_there(rows):
            return False
        return bool(rows.stop - (rows.start or 0) <= SHOWN_ROWS)


def _begins_there(rows: slice) -> bool:
    """Whether a slice is of rows that are counted from the first."""
    start, stop = rows.start or 0, rows.stop
    return rows.step in (None, 1) and isinstance(stop, int) and 0 <= start <= stop


def _named(dataset: StoredDataset, rows: Any) -> Ints:
    """Physical rows that were named one by one.

    Raises:
        InvalidInputError: they do not ascend, or one is there twice.
    """
    if isinstance(rows, list | tuple) and rows and isinstance(rows[0], str):
        return choose_rows(dataset, rows).rows
    numbers = np.asarray(resolve_rows(rows, dataset.rows), np.int64)
    if (np.diff(numbers) <= 0).any():
        raise InvalidInputError(
            "rows of a selection stay in the order of their dataset, each once: give them "
            "ascending, select(rows=sorted(rows)). ds[[3, 1]] reads rows in any order."
        )
    return live_rows(dataset).physical(numbers)
