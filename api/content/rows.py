"""Rows of datasets and views as JSON: pages by position, of some columns, where a condition holds.

No more is read than an answer shows: pictures and large values stay unread, and a condition reads
the columns that it names, from the row on where the page before ended, for a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from pydantic import Field

from tensorrepo.api.content.cells import CellLink, cell_json, heavy_json, is_heavy, mean_bytes
from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, read_live, row_id_table
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Image
from tensorrepo.formats.dataset.selecting.select_rows import condition_rows
from tensorrepo.formats.dataset.selecting.sql_condition import SqlCondition, read_condition
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NoSuchRowError

PAGE_BYTES: Final = 8 << 20  # decoded, of the rows of one page
MOST_ROWS: Final = 1000
MOST_CONDITION_CHARACTERS: Final = 16 << 10
SEARCH_SECONDS: Final = 5.0  # of looking for rows that match, in one answer


# Numbers of the rows of a dataset for which a condition in SQL is true, ascending: from a row on,
# and so many at most.
AskCondition: TypeAlias = Callable[[StoredDataset, str, int, int | None], Ints]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Which rows are asked for.

    Attributes:
        start: number of the first row that is looked at, counted from 0.
        limit: largest number of rows.
        columns: names of columns, in this order; none: all that a user gave.
        where: SQL condition that rows meet; "" is none.
        take: numbers of rows, in this order; none: those from `start` on.
    """

    start: int = 0
    limit: int = 100
    columns: tuple[str, ...] = ()
    where: str = ""
    take: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.start < 0 or not 1 <= self.limit <= MOST_ROWS:
            raise InvalidInputError(
                f"rows from {self.start}, {self.limit} of them: expected 0 or more, and 1 to "
                f"{MOST_ROWS:,}"
            )
        if self.take and (self.where or self.start):
            raise InvalidInputError("`take` names the rows: give no `where` and no `start` with it")
        if len(self.take) > MOST_ROWS:
            raise InvalidInputError(f"`take` names {MOST_ROWS:,} rows at most: ask several times")
        if len(self.where) > MOST_CONDITION_CHARACTERS:
            raise InvalidInputError(
                f"a condition has at most {MOST_CONDITION_CHARACTERS:,} characters"
            )


class RowRecord(Record):
    """One row."""

    row: int = Field(description="Number of the row, counted from 0.")
    id: str = Field(description="Id that the row keeps through versions.")
    values: dict[str, Any] = Field(
        description="Values by column. Pictures and large values are objects that say what they "
        "are, and under `href` where they are as files."
    )


class RowPage(Record):
    """Some rows; `next` is the row from which to go on, null at the end."""

    commit: str
    path: str
    rows: int = Field(description="Rows of the whole dataset or view.")
    columns: list[str]
    items: tuple[RowRecord, ...]
    next: int | None = Field(
        default=None,
        description="`start` of the page that follows. With a condition a page may be short, or "
        "empty, and more follow: the search goes on there.",
    )


def read_rows(
    content: CommitContent,
    path: str,
    request: RowRequest | None = None,
    *,
    link: CellLink | None = None,
    ask: AskCondition | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> RowPage:
    """A page of rows of a dataset or a view.

    Args:
        content: commit that holds it.
        path: whole path of the dataset or view.
        request: which rows; None: the first ones.
        link: where a cell is as a file; None: no links are told.
        ask: answers conditions that say more than comparisons, see `SqlQueries.rows_where`; None:
            they are refused.
        timer: clock that bounds the search of a condition.

    Raises:
        NotFoundError: no such entry or column.
        NoSuchRowError: a row of `take` that is not there.
        InvalidInputError: a condition that does not fit the columns.
    """
    asked = request or RowRequest()
    dataset = content.dataset(path)
    columns = chosen_columns(dataset, asked.columns)
    most = min(asked.limit, rows_that_fit(dataset, columns))
    numbers, following = _numbers(dataset, asked, most, timer, ask)
    return RowPage(
        commit=content.commit,
        path=path,
        rows=dataset.rows,
        columns=[column.name for column in columns],
        items=tuple(_records(dataset, columns, numbers, link)),
        next=following,
    )


def chosen_columns(dataset: StoredDataset, names: Sequence[str]) -> list[Column]:
    """Columns by their names, hidden ones too; none: all that a user gave."""
    schema = dataset.schema
    return [schema.column(name) for name in names] if names else list(schema.visible.columns)


def rows_that_fit(dataset: StoredDataset, columns: Sequence[Column]) -> int:
    """How many rows a page may have, so that reading them takes about `PAGE_BYTES`."""
    light = [column for column in columns if not is_heavy(dataset, column)]
    row_bytes = sum(mean_bytes(dataset, column) for column in light)
    return max(1, int(PAGE_BYTES / max(row_bytes, 1.0)))


def plain_condition(dataset: StoredDataset, where: str, ask: AskCondition | None) -> SqlCondition:
    """A condition; its `expression` is None where `ask` has to answer it.

    Raises:
        InvalidInputError: it does not fit the columns, or `ask` is None and would be needed.
    """
    found = read_condition(where, dataset.schema)
    if found.expression is None and ask is None:
        raise InvalidInputError(
            f"the condition {where!r:.200} says more than comparisons of columns with values: ask "
            "for row_number by the SQL route, and `take` these rows"
        )
    return found


def _numbers(
    dataset: StoredDataset,
    asked: RowRequest,
    most: int,
    timer: Callable[[], float],
    ask: AskCondition | None,
) -> tuple[Ints, int | None]:
    """Numbers of the rows of a page, and the row from which to go on."""
    if asked.take:
        return _taken(dataset, asked.take[:most], asked.take[most:])
    if asked.where:
        return _matching(dataset, asked, most, timer, ask)
    stop = min(asked.start + most, dataset.rows)
    return np.arange(min(asked.start, stop), stop), stop if stop < dataset.rows else None


def _taken(
    dataset: StoredDataset, rows: Sequence[int], more: Sequence[int]
) -> tuple[Ints, int | None]:
    beyond = [row for row in (*rows, *more) if not 0 <= row < dataset.rows]
    if beyond:
        raise NoSuchRowError(f"no row {beyond[0]}: there are {dataset.rows:,}, counted from 0")
    if more:
        raise InvalidInputError(
            f"these {len(rows) + len(more):,} rows are too large for one answer: take {len(rows)}"
        )
    return np.array(rows, np.int64), None


def _matching(
    dataset: StoredDataset,
    asked: RowRequest,
    most: int,
    timer: Callable[[], float],
    ask: AskCondition | None,
) -> tuple[Ints, int | None]:
    until, looked_at = timer() + SEARCH_SECONDS, [asked.start]
    condition = plain_condition(dataset, asked.where, ask)
    if condition.expression is None and ask is not None:
        answer = ask(dataset, condition.sql, asked.start, most + 1)
        return answer[:most], int(answer[most]) if len(answer) > most else None
    found = condition_rows(dataset, condition, looked_at.append, start=asked.start)
    assert found is not None, "it is a condition"
    parts, count = [np.zeros(0, np.int64)], 0
    for numbers in found:
        parts.append(numbers)
        count += len(numbers)
        if count > most or (len(looked_at) > 1 and timer() > until):  # some way was made
            break
    else:
        looked_at.append(dataset.rows)
    rows = np.concatenate(parts)
    if len(rows) > most:
        return rows[:most], int(rows[most])
    # The generator tells how far it was only when it is asked for more.
    following = max(looked_at[-1], int(rows[-1]) + 1 if len(rows) else 0)
    return rows, following if following < dataset.rows else None


def _records(
    dataset: StoredDataset, columns: Sequence[Column], numbers: Ints, link: CellLink | None
) -> Iterator[RowRecord]:
    light = [column for column in columns if not is_heavy(dataset, column)]
    facts = _image_facts(dataset, columns)
    names = [*(column.name for column in light), *(name for _, name in facts.values())]
    read = read_live(dataset, list(dict.fromkeys(names)), numbers) if names else []
    values = dict(zip(dict.fromkeys(names), read, strict=True))
    ids = row_id_table(dataset).of(live_rows(dataset).physical(numbers)) if len(numbers) else ()
    for at, (row, row_id) in enumerate(zip(numbers.tolist(), ids, strict=True)):
        told = {
            (source, fact): value_of(dataset.schema.column(name), values[name], at)
            for (source, fact), (_, name) in facts.items()
        }
        shown: dict[str, Any] = {}
        for column in columns:
            if column in light:
                value = present_row(column, values[column.name], at)
                shown[column.name] = cell_json(column, value, row, link)
            else:
                own = {fact: value for (source, fact), value in told.items() if source == column.id}
                shown[column.name] = heavy_json(column, row, link, own)
        yield RowRecord(row=row, id=format_row_id(row_id), values=shown)


def value_of(column: Column, values: Any, at: int) -> Any:
    """One value of numpy or text as JSON has it."""
    value = present_row(column, values, at)
    return value.item() if isinstance(value, np.generic) else value


def _image_facts(
    dataset: StoredDataset, columns: Sequence[Column]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Hidden columns that tell height, width and mode of images, by image column and fact."""
    images = {column.id: column.name for column in columns if isinstance(column.type, Image)}
    return {
        (column.derived[0], column.derived[1]): (images[column.derived[0]], column.name)
        for column in dataset.schema.columns
        if column.derived is not None and column.derived[0] in images
    }
