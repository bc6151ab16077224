"""Previews of entries: rows of datasets and views, tensors of models, read as they are taken.

Only the pages are read that hold the rows and columns asked for; a condition reads the columns that
it compares until there are rows enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from tensorrepo import lazy
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset, read_live
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.json_values import named_class
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.selecting.select_rows import condition_rows
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.purged import telling_purged
from tensorrepo.formats.views import open_rows, open_view
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind, ObjectSource

PART_BYTES = 8 << 20  # of the rows that are read at once
PART_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """Which rows are to be shown.

    Attributes:
        start: number of rows passed over; of those that match, where there is a condition.
        rows: largest number of rows.
        columns: names of columns, in this order; None: all.
        where: SQL condition that rows meet; None: any row.
    """

    start: int = 0
    rows: int = 10
    columns: Sequence[str] | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """Records under names of columns, each with the number of its row, as they are read.

    Classes come by their names; of a model the records are its tensors, which have no numbers.
    """

    columns: tuple[str, ...]
    records: Iterator[tuple[int | None, dict[str, Any]]]


def preview(
    objects: ObjectSource, path: str, entry: Entry, outside: Outside, request: PreviewRequest
) -> Preview:
    """Some rows of a dataset or a view, or tensors of a model.

    Raises:
        InvalidInputError: an entry without rows, or a condition that does not fit the columns.
        NotFoundError: a column that is not there.
        PurgedError: a column, or a row named by its id, was purged.
    """
    asked = [*(request.columns or ()), request.where or ""]
    if entry.kind is Kind.DATASET:
        with telling_purged(objects, [path], asked):
            return preview_rows(open_dataset(objects, entry.digest, outside), request)
    if entry.kind is Kind.VIEW:
        view = open_view(objects, entry.digest)
        _, dataset = open_rows(objects, view, outside)
        with telling_purged(objects, [view.path], asked):
            return preview_rows(dataset, request)
    if request.columns is not None or request.where is not None:
        raise InvalidInputError(
            f"{path} is a {entry.kind.label}: columns and conditions are of datasets"
        )
    if entry.kind is Kind.MODEL:
        return _preview_tensors(open_model(objects, entry))
    raise InvalidInputError(f"{path} is a {entry.kind.label}, which has no rows to print")


def preview_rows(dataset: StoredDataset, request: PreviewRequest) -> Preview:
    """Some rows of a dataset."""
    visible = dataset.schema.visible
    names = visible.names if request.columns is None else tuple(request.columns)
    columns = [dataset.schema.column(name) for name in names]
    numbers: Iterator[int]
    if request.where is None:
        stop = min(request.start + request.rows, len(dataset))
        numbers = iter(range(min(request.start, stop), stop))
    else:
        found = condition_rows(dataset, lazy.row_selection(dataset, request.where))
        if found is None:
            raise InvalidInputError(f"{request.where!r:.200} is no condition")
        matches = chain.from_iterable(part.tolist() for part in found)
        numbers = islice(matches, request.start, request.start + request.rows)
    return Preview(names, _records(dataset, columns, numbers))


def _records(
    dataset: StoredDataset, columns: Sequence[Column], numbers: Iterator[int]
) -> Iterator[tuple[int | None, dict[str, Any]]]:
    names = [column.name for column in columns]
    size = sum(column_index(dataset, name).raw_bytes for name in names) / max(1, dataset.root.rows)
    at_once = max(1, min(PART_ROWS, math.floor(PART_BYTES / max(size, 1.0))))
    while part := list(islice(numbers, at_once)):
        values = read_live(dataset, names, np.array(part))
        for at, number in enumerate(part):
            yield (
                number,
                {
                    column.name: named_class(column.type, present_row(column, each, at))
                    for column, each in zip(columns, values, strict=True)
                },
            )


def _preview_tensors(model: StoredModel) -> Preview:
    specs = ((name, model.spec(name)) for name in model)
    records: Iterator[tuple[int | None, dict[str, Any]]] = (
        (
            None,
            {
                "name": name,
                "dtype": spec.type.name,
                "shape": list(spec.shape),
                "bytes": spec.size_bytes,
            },
        )
        for name, spec in specs
    )
    return Preview(("name", "dtype", "shape", "bytes"), records)
