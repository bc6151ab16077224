"""Upsert: rows whose key is there are updated, the others are appended.

The input is coerced and spilled to a temporary file, so that it may be read once and larger than
memory; its keys alone stay in memory. One pass over the key columns of the dataset finds the rows
that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.dtypes import Bools
from tensorrepo.formats.dataset.changing.spool import Spool, SpoolWriter
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset
from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema
from tensorrepo.formats.dataset.selecting.row_keys import KeyTable, check_key_columns
from tensorrepo.formats.dataset.selecting.select_rows import Chosen, find_keys
from tensorrepo.formats.dataset.update import set_values
from tensorrepo.formats.dataset.write import BUDGET_BYTES, write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink


@contextmanager
def spooled(
    schema: Schema, needed: Sequence[Column], batches: Iterable[InputBatch]
) -> Iterator[Spool]:
    """All rows of `batches`, coerced, in a file that is gone afterwards.

    All batches must have `needed` and the columns of the first one.

    Raises:
        InvalidInputError: a row that does not fit; names row, column, expected and found.
    """
    given: Schema | None = None
    with closing(SpoolWriter()) as writer:
        for batch in batches:
            for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
                for at, names in _names(part):
                    given = given or _columns(schema, needed, names)
                    _check_alike(given, names, writer.rows + at)
                if given is not None:
                    writer.add(given, coerce_batch(given, part, writer.rows))
        yield writer.finish(given or schema.visible)


def _columns(schema: Schema, needed: Sequence[Column], names: Sequence[str]) -> Schema:
    """The columns of a dataset that rows give."""
    visible = schema.visible
    for name in names:
        visible.column(name)
    for column in needed:
        if column.name not in names:
            raise InvalidInputError(f"the rows have no column {column.name!r}, which is the key")
    return Schema(tuple(column for column in visible.columns if column.name in names))


def _check_alike(given: Schema, names: Sequence[str], row: int) -> None:
    """Not null for what a row lacks: that would overwrite what is there."""
    if set(names) != set(given.names):
        raise InvalidInputError(
            f"row {row} has columns {', '.join(sorted(names))}, "
            f"the rows before it {', '.join(sorted(given.names))}"
        )


def _names(batch: InputBatch) -> Iterator[tuple[int, Sequence[str]]]:
    """The columns that are given: once for all rows, or with rows given one by one for each."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        yield 0, list(batch.schema.names)
    elif isinstance(batch, Mapping):
        yield 0, list(batch)
    else:
        for at, row in enumerate(batch):
            if not isinstance(row, Mapping):
                raise InvalidInputError(
                    f"row {at}: expected a mapping of columns, found {type(row).__name__}"
                )
            yield at, list(row)


def upsert(
    objects: ObjectSink,
    dataset: StoredDataset,
    key: str | Sequence[str],
    batches: Iterable[InputBatch],
    *,
    codec: CodecChoice = Codec.NONE,
    budget_bytes: int = BUDGET_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ObjectLink:
    """Update the rows whose key is there, and append the others.

    All batches have the columns of the first one; columns that they lack stay as they are, and take
    their default, or null, in new rows. `budget_bytes` bounds the memory used, beside the keys of
    the input and one batch; `progress` receives rows and bytes so far, of updated and then of
    appended rows.

    Returns:
        Link of the new root; of the old one when nothing differs.

    Raises:
        InvalidInputError: a row that does not fit, a key that is null or given twice, or one that
            several rows of the dataset have.
        NotFoundError: a key column that is not there.
    """
    columns = check_key_columns(dataset.schema, [key] if isinstance(key, str) else key)
    with spooled(dataset.schema, columns, batches) as spool:
        if not spool.rows:
            return objects.describe(dataset.digest)
        table = KeyTable.of(columns, spool.keys(columns), unique=True)
        chosen = _match(dataset, table)
        is_new = np.ones(spool.rows, np.bool_)
        is_new[chosen.places] = False
        _check_complete(dataset.schema, spool, table, is_new)
        sources = {
            column.name: spool.source(column)
            for column in spool.schema.columns
            if column not in columns
        }
        updated = set_values(
            objects, dataset, chosen, sources, budget_bytes=budget_bytes, progress=progress
        )
        if not is_new.any():
            return updated
        return write_dataset(
            objects,
            dataset.schema,
            spool.batches(np.flatnonzero(is_new)),
            base=open_dataset(objects, updated.digest),
            codec=codec,
            budget_bytes=budget_bytes,
            progress=progress,
        )


def _match(dataset: StoredDataset, table: KeyTable) -> Chosen:
    rows, places = find_keys(dataset, table)
    unique, counts = np.unique(places, return_counts=True)
    if (counts > 1).any():
        at = int(unique[counts > 1][0])
        found = rows[places == at]
        raise InvalidInputError(
            f"key {table.text(at)} names {len(found)} rows of the dataset, such as {found[0]} and "
            f"{found[1]}: an upsert needs a key that tells rows apart"
        )
    return Chosen(live_rows(dataset).physical(rows), places, table.rows)


def _check_complete(schema: Schema, spool: Spool, table: KeyTable, is_new: Bools) -> None:
    """New rows need a value in every column."""
    for column in schema.visible.columns:
        has_value = column.name in spool.schema or column.nullable or column.default is not None
        if not has_value and is_new.any():
            at = int(np.flatnonzero(is_new)[0])
            raise InvalidInputError(
                f"row {at} ({table.text(at)}) is new, and needs a value for column "
                f"{column.name!r}, which is neither given nor nullable and has no default"
            )
