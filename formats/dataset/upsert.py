"""Rows whose key is there are updated, the others are appended.

The input is coerced and spooled to a temporary file, so that it may be read once and larger than
memory; its keys alone stay in memory. One pass over the key columns of the dataset finds the rows
that have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.dataset.editing.rowkeys import KeyTable, check_key_columns
from tensorrepo.formats.dataset.editing.spoolwrite import Spool, spooled
from tensorrepo.formats.dataset.editing.where import Chosen, find_keys
from tensorrepo.formats.dataset.read import Dataset, live_rows, open_dataset
from tensorrepo.formats.dataset.update import set_values
from tensorrepo.formats.dataset.write import BUDGET_BYTES, write_dataset
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tensorrepo.formats.codecs.choice import CodecChoice
    from tensorrepo.formats.dataset.columns.schema import InputBatch, Schema
    from tensorrepo.repo.objects import Link, ObjectSink


def upsert(
    objects: ObjectSink,
    dataset: Dataset,
    key: str | Sequence[str],
    batches: Iterable[InputBatch],
    *,
    codec: CodecChoice = Codec.NONE,
    budget_bytes: int = BUDGET_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Link:
    """Update the rows whose key is there, and append the others.

    Args:
        objects: where to store.
        dataset: what to change.
        key: the column, or columns, that tell one row from every other.
        batches: rows, as for `write_dataset`. All batches have the columns of the first one;
            columns that they lack stay as they are, and take their default, or null, in new rows.
        codec: of appended rows, see `write_dataset`.
        budget_bytes: bound of the memory used, beside the keys of the input and one batch.
        progress: called with rows and bytes so far, of updated and then of appended rows.

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
            spool.batches(is_new),
            base=open_dataset(objects, updated.digest),
            codec=codec,
            budget_bytes=budget_bytes,
            progress=progress,
        )


def _match(dataset: Dataset, table: KeyTable) -> Chosen:
    rows, places = find_keys(dataset, table)
    unique, counts = np.unique(places, return_counts=True)
    if (counts > 1).any():
        at = int(unique[counts > 1][0])
        found = rows[places == at]
        raise InvalidInputError(
            f"key {table.text(at)} names {len(found)} rows of the dataset, such as {found[0]} and "
            f"{found[1]}: an upsert needs a key that tells rows apart"
        )
    live = live_rows(dataset)
    return Chosen(rows if live is None else live.physical(rows), places, table.rows)


def _check_complete(
    schema: Schema, spool: Spool, table: KeyTable, is_new: NDArray[np.bool_]
) -> None:
    """New rows need a value in every column."""
    for column in schema.visible.columns:
        has_value = column.name in spool.schema or column.nullable or column.default is not None
        if not has_value and is_new.any():
            at = int(np.flatnonzero(is_new)[0])
            raise InvalidInputError(
                f"row {at} ({table.text(at)}) is new, and needs a value for column "
                f"{column.name!r}, which is neither given nor nullable and has no default"
            )
