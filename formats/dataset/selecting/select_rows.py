"""Row selection: which rows a caller means.

Rows are named by a condition (a `col()` expression over columns, or SQL that says one or that
DuckDB answered), by their ids, by their numbers, or by the values of key columns. The
answer counts physical rows.

A condition reads the columns that it names, page after page; pages for whose rows it cannot be true
are not read, see `pruning`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints, is_small_float
from tensorrepo.formats.dataset.metadata.row_ids import ROW_ID, format_row_id, row_ids
from tensorrepo.formats.dataset.metadata.tree_read import read_leaf
from tensorrepo.formats.dataset.read import (
    BATCH_BYTES,
    RowNumbers,
    StoredDataset,
    column_index,
    live_rows,
    resolve_rows,
    row_id_table,
)
from tensorrepo.formats.dataset.read import scan as scan_pages
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, concat
from tensorrepo.formats.dataset.selecting.predicate import RowExpression, is_row_id
from tensorrepo.formats.dataset.selecting.pruning import rows_that_may_match
from tensorrepo.formats.dataset.selecting.row_keys import KeyTable, check_key_columns, key_array
from tensorrepo.formats.dataset.selecting.sql_condition import SqlCondition, read_condition
from tensorrepo.formats.purged import refuse_purged_rows
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

# A condition as `col()` expression, as one of Arrow's or in SQL, one that was read before, key
# columns with their values, row ids (ROW_ID records, or texts), or numbers of rows that are not
# deleted, in any form that `StoredDataset[...]` takes.
Where: TypeAlias = (
    "RowExpression | pc.Expression | str | SqlCondition | int | Mapping[str, Any] | slice | range"
    " | Sequence[Any] | np.ndarray[Any, np.dtype[Any]]"
)
SCAN_ROWS = 1 << 16  # batches of so many rows cost little beside their values
_NO_KERNEL = re.compile(r"Function '(.+?)' has no kernel matching input types \((.+)\)")


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Rows that something is to be done with.

    Attributes:
        rows: int64 ``(n,)``, physical rows that are not deleted, ascending, each once.
        places: int64 ``(n,)``: each row is the one given at this place.
        given: number of rows named; for a predicate n.
    """

    rows: Ints
    places: Ints
    given: int


@dataclass(frozen=True, slots=True, eq=False)
class FragmentRows:
    """Chosen rows ``[start, stop)`` that lie in one fragment.

    `fragment` is its number within its leaf; it begins with physical row `first_row` and has `rows`
    rows, deleted ones too.
    """

    fragment: int
    uid: int
    first_row: int
    rows: int
    start: int
    stop: int


# ------------------------------------------------------------------------------ choosing


def choose_rows(
    dataset: StoredDataset, where: Where, *, strict: bool = True, within: Ints | None = None
) -> Chosen:
    """The rows that `where` names.

    `strict` refuses ids and keys that no row has, and rows that are named twice; else they are
    passed over. `within` are physical ranges as for `condition_rows`.

    Raises:
        InvalidInputError: a predicate that does not fit the columns, or no way to name rows.
        NotFoundError: row numbers beyond the end; with `strict` ids or keys that no row has.
    """
    matching = matching_rows(dataset, where, within=within)
    if matching is not None:
        rows = live_rows(dataset).physical(matching)
        return Chosen(rows, np.arange(len(rows)), len(rows))
    if isinstance(where, str):
        where = [where]
    if isinstance(where, Mapping):
        return _by_keys(dataset, where, strict=strict)
    if isinstance(where, int | np.integer):
        where = [int(where)]
    if _are_ids(where):
        return _by_ids(dataset, where, strict=strict)
    given: Any = where
    numbers = np.asarray(resolve_rows(given, dataset.rows), np.int64)
    return _chosen(
        live_rows(dataset).physical(numbers), np.arange(len(numbers)), len(numbers), strict=strict
    )


def is_condition(where: Any) -> bool:
    """Whether `where` is a condition as text: it is no row id."""
    return isinstance(where, str) and not is_row_id(where)


def count_rows(dataset: StoredDataset, where: Where) -> int:
    """How many rows `where` names."""
    return len(choose_rows(dataset, where, strict=False).rows)


def find_rows(dataset: StoredDataset, where: Where) -> Ints:
    """Numbers of the rows that `where` names, deleted ones not counted, ascending."""
    return live_rows(dataset).live(choose_rows(dataset, where, strict=False).rows)


def ids_of_rows(dataset: StoredDataset, rows: RowNumbers) -> list[str]:
    """Ids of some rows, given by number, as text."""
    numbers = np.asarray(resolve_rows(rows, dataset.rows), np.int64)
    return [
        format_row_id(each)
        for each in row_id_table(dataset).of(live_rows(dataset).physical(numbers))
    ]


def rows_of_ids(dataset: StoredDataset, ids: Sequence[Any] | NDArray[Any]) -> Ints:
    """Numbers of the rows that have these ids, deleted ones not counted; -1 where there is none."""
    return live_rows(dataset).live(row_id_table(dataset).find(row_ids(ids)))


def _chosen(rows: Ints, places: Ints, given: int, *, strict: bool) -> Chosen:
    unique, first = np.unique(rows, return_index=True)
    if strict and len(unique) != len(rows):
        again = np.setdiff1d(np.arange(len(rows)), first)[0]
        raise InvalidInputError(f"the row given as number {places[again]} is given twice")
    return Chosen(unique, places[first], given)


# ------------------------------------------------------------------------------ predicates


def matching_rows(
    dataset: StoredDataset,
    where: Where,
    progress: Callable[[int], None] | None = None,
    *,
    within: Ints | None = None,
) -> Ints | None:
    """`condition_rows` all together."""
    numbers = condition_rows(dataset, where, progress, within=within)
    return None if numbers is None else np.concatenate([np.zeros(0, np.int64), *numbers])


def condition_rows(
    dataset: StoredDataset,
    where: Where,
    progress: Callable[[int], None] | None = None,
    *,
    start: int = 0,
    within: Ints | None = None,
) -> Iterator[Ints] | None:
    """Numbers of the rows, deleted ones not counted, for which a condition is true.

    They come ascending, some at a time, as they are found; rows for which it is null are not among
    them, nor those before `start`, which are not looked at. None where `where` names rows
    otherwise. `progress` receives the rows looked at so far. `within`, int64 ``(n, 2)``, are
    physical ranges, ascending and apart: no others are looked at where each row is judged alone.

    Raises:
        InvalidInputError: it names columns that are not there, or compares what has no order.
        UnsupportedError: SQL that no expression says, which DuckDB was not asked about.
    """
    condition = read_condition(str(where), dataset.schema) if is_condition(where) else where
    if isinstance(condition, RowExpression):
        condition = condition.bound(dataset.schema)
    if not isinstance(condition, SqlCondition):
        is_expression = isinstance(condition, pc.Expression)
        if not is_expression:
            return None
        return _each_match(dataset, condition, progress, start, within)
    if condition.expression is not None:
        return _each_match(dataset, condition.expression, progress, start, within)
    if condition.rows is None:
        raise UnsupportedError(f"condition {where!r:.200}: only SQL over the dataset answers it")
    numbers = condition.rows.numbers()
    return iter([numbers[np.searchsorted(numbers, start) :]])


def _each_match(
    dataset: StoredDataset,
    expression: pc.Expression,
    progress: Callable[[int], None] | None,
    start: int,
    within: Ints | None,
) -> Iterator[Ints]:
    columns = [dataset.schema.column(name) for name in named_columns(expression, dataset.schema)]
    if start >= dataset.rows:
        return
    if not columns:
        always = pa.table({"": [0]}).filter(expression).num_rows
        yield np.arange(start, dataset.rows if always else start)
        return
    number = "#" * (1 + max(map(len, dataset.schema.names)))  # a name that no column has
    live = live_rows(dataset)
    names, ranges = [column.name for column in columns], ranges_where(dataset, expression)
    first = int(live.physical(np.array([start]))[0])
    ranges = np.maximum(ranges[ranges[:, 1] > first], first)
    ranges = ranges if within is None else _common(ranges, within)
    scanned = (each for bounds in ranges.tolist() for each in scan_pages(dataset, names, *bounds))
    for rows, batch in _joined_batches(scanned):
        arrays = {column.name: comparable(column, batch[column.name]) for column in columns}
        numbers = live.live(rows)
        arrays[number] = pa.array(numbers)
        yield filtered(pa.table(arrays), expression)[number].to_numpy()
        if progress is not None:
            progress(int(numbers[-1]) + 1)


def ranges_where(dataset: StoredDataset, expression: pc.Expression) -> Ints:
    """Physical rows outside of which a predicate is true for none: int64 ``(n, 2)``."""
    columns = {column.name: column for column in dataset.schema.columns}
    index_of = partial(column_index, dataset)
    return rows_that_may_match(expression, columns, index_of, dataset.root.rows)


def _common(one: Ints, two: Ints) -> Ints:
    """What ranges of rows have in common; each ascend and are apart: int64 ``(n, 2)``."""
    low = np.searchsorted(two[:, 1], one[:, 0], side="right")
    counts = np.maximum(np.searchsorted(two[:, 0], one[:, 1], side="left") - low, 0)
    mine = np.repeat(np.arange(len(one)), counts)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts - low, counts)
    starts = np.maximum(one[mine, 0], two[theirs, 0])
    return np.stack([starts, np.minimum(one[mine, 1], two[theirs, 1])], axis=1)


def filtered(rows: pa.Table, expression: pc.Expression) -> pa.Table:
    """Rows for which an expression is true.

    Raises:
        InvalidInputError: it compares what Arrow does not compare.
    """
    try:
        return rows.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # such as 2^63 as an int64
        raise InvalidInputError(
            f"predicate {expression!s:.200}: {_in_our_words(str(error)):.200}"
        ) from error


def named_columns(expression: pc.Expression, schema: Schema) -> list[str]:
    """The columns that an expression reads, in the order of the schema.

    Raises:
        InvalidInputError: it does not fit the columns.
    """
    text = str(expression)
    if "FieldPath(" in text:
        raise InvalidInputError(f"predicate {text:.200}: name columns by name, not by number")
    # What an expression reads is what it cannot do without.
    likely = [column for column in schema.columns if column.name in text]
    for columns in (likely, schema.columns):
        empty = {column.name: comparable(column, coerce_column(column, [])) for column in columns}
        fields = pa.table(empty).schema
        reason = _refusal(expression, fields)
        if reason is None:
            return [
                field.name
                for at, field in enumerate(fields)
                if _refusal(expression, fields.remove(at)) is not None
            ]
    raise InvalidInputError(
        f"predicate {text:.200}: {reason:.200}. The columns are "
        f"{', '.join(f'{field.name!r} ({field.type})' for field in fields):.2000}"
    )


def _refusal(expression: pc.Expression, fields: pa.Schema) -> str | None:
    """Why the expression cannot be applied to rows of these fields; None: it can."""
    try:
        pa.table({field.name: pa.array([], field.type) for field in fields}).filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError) as error:
        return _in_our_words(str(error).partition(" in ")[0])
    return None


def _in_our_words(reason: str) -> str:
    """Why Arrow refuses an expression."""
    if reason.startswith("Precision is not great enough"):
        return "a decimal is compared with a decimal: write decimal.Decimal('1'), not 1"
    found = _NO_KERNEL.search(reason)
    if found is None:
        return reason
    kinds = found[2].split(", ")
    if len(kinds) == 2:
        return f"{kinds[0]} is not compared with {kinds[1]}: use a value of the column's own type"
    return f"{found[1]!r} takes no {found[2]}"


def comparable(column: Column, values: ColumnValues) -> pa.Array:
    """Values in a form that Arrow compares, where there is one."""
    storage = column.storage
    is_small = is_small_float(storage.element) or storage.element == np.float16
    if storage.layout is ColumnLayout.FIXED and not storage.shape and is_small:
        # Arrow knows the smallest floats as bytes alone, and compares no float16.
        numbers = getattr(values, "values").astype(np.float32)  # noqa: B009 - fixed
        return pa.array(numbers, mask=None if values.valid is None else ~values.valid)
    array = to_arrow_array(column.type, values)
    if pa.types.is_fixed_size_binary(array.type) and storage.layout is ColumnLayout.BINARY:
        return array.cast(pa.large_binary())  # the others are not compared with bytes
    is_wrapped = isinstance(array, pa.ExtensionArray) and storage.layout is ColumnLayout.BINARY
    return array.storage if is_wrapped else array


def scan(
    dataset: StoredDataset, columns: Iterable[str], rows: int = SCAN_ROWS
) -> Iterator[dict[str, ColumnValues]]:
    """`iterate`, with batches joined up to so many rows, within `BATCH_BYTES` or one batch."""
    names = dataset.schema.select(columns).names
    for _, batch in _joined_batches(scan_pages(dataset, names), rows):
        yield batch


_Batch: TypeAlias = "tuple[Ints, dict[str, ColumnValues]]"


def _joined_batches(batches: Iterable[_Batch], rows: int = SCAN_ROWS) -> Iterator[_Batch]:
    """Batches with the numbers of their rows, put together as `scan` says."""
    waiting: list[_Batch] = []
    count = size = 0
    for numbers, batch in batches:
        batch_bytes = sum(values.nbytes for values in batch.values())
        if waiting and (count >= rows or size + batch_bytes > BATCH_BYTES):
            yield _joined(waiting)
            waiting, count, size = [], 0, 0
        waiting.append((numbers, batch))
        count += len(numbers)
        size += batch_bytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[_Batch]) -> _Batch:
    if len(batches) == 1:
        return batches[0]
    numbers = np.concatenate([each for each, _ in batches])
    names = batches[0][1]
    return numbers, {name: concat([batch[name] for _, batch in batches]) for name in names}


# ------------------------------------------------------------------------------ ids and keys


def _are_ids(where: Any) -> bool:
    if isinstance(where, np.ndarray):
        return where.dtype == ROW_ID or where.dtype.kind in "US"
    first = where[0] if isinstance(where, Sequence) and len(where) else None
    return isinstance(first, str | tuple | np.void)


def _by_ids(dataset: StoredDataset, ids: Any, *, strict: bool) -> Chosen:
    wanted = row_ids([each.item() if isinstance(each, np.void) else each for each in ids])
    rows = row_id_table(dataset).find(wanted)
    rows = np.where(rows_of_ids(dataset, wanted) >= 0, rows, -1)
    there = np.flatnonzero(rows >= 0)
    if strict and len(there) != len(rows):
        missing = wanted[int(np.flatnonzero(rows < 0)[0])]
        refuse_purged_rows(dataset.objects, wanted[rows < 0])
        raise NotFoundError(f"no row has id {format_row_id(missing)}, or it was deleted")
    return _chosen(rows[there], there, len(rows), strict=strict)


def _by_keys(dataset: StoredDataset, keys: Mapping[str, Any], *, strict: bool) -> Chosen:
    columns = check_key_columns(dataset.schema, list(keys))
    given = []
    for column in columns:
        values = keys[column.name]
        single = isinstance(values, str | bytes) or not hasattr(values, "__len__")
        given.append(key_array(column, coerce_column(column, [values] if single else values)))
    if len({len(each) for each in given}) > 1:
        raise InvalidInputError(f"key columns have {[len(each) for each in given]} values")
    table = KeyTable.of(columns, given, unique=False)
    rows, places = find_keys(dataset, table)
    if strict and len(missing := np.setdiff1d(np.arange(table.rows), places)):
        raise NotFoundError(f"no row has key {table.text(int(missing[0]))}")
    return Chosen(live_rows(dataset).physical(rows), places, table.rows)


def find_keys(dataset: StoredDataset, table: KeyTable) -> tuple[Ints, Ints]:
    """Rows, deleted ones not counted, whose key is in `table`, and which key it is."""
    rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    first = 0
    names = [column.name for column in table.columns]
    # Arrow hashes the table for every batch: batches as large as the table keep that in proportion.
    for batch in scan(dataset, names, max(SCAN_ROWS, table.rows)):
        found = table.find([key_array(column, batch[column.name]) for column in table.columns])
        hits = np.flatnonzero(found >= 0)
        rows.append(first + hits)
        places.append(found[hits])
        first += len(found)
    return np.concatenate(rows), np.concatenate(places)


# ------------------------------------------------------------------------------ fragments


def by_leaf(dataset: StoredDataset, rows: Ints) -> Iterator[tuple[int, tuple[FragmentRows, ...]]]:
    """The fragments that hold some of `rows`, physical and ascending, by number of their leaf."""
    leaves = dataset.root.leaves
    bounds = np.concatenate([[0], np.cumsum([leaf.rows for leaf in leaves], dtype=np.int64)])
    cuts = np.searchsorted(rows, bounds).tolist()
    for number, entry in enumerate(leaves):
        start, stop = cuts[number : number + 2]
        if start == stop:
            continue
        records = read_leaf(dataset.objects, dataset.links, entry)[0].fragments
        counts = records["rows"].astype(np.int64)
        firsts = bounds[number] + np.cumsum(counts) - counts
        starts = start + np.searchsorted(rows[start:stop], firsts)
        stops = np.append(starts[1:], stop)
        facts = (np.arange(len(counts)), records["uid"], firsts, counts, starts, stops)
        touched = starts < stops
        held = zip(*(each[touched].tolist() for each in facts), strict=True)
        yield number, tuple(starmap(FragmentRows, held))
