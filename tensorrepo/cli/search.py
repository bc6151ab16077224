"""Search on the command line: rows nearest to a vector, rows that fit words."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    ColumnsOption,
    RepoCall,
    VerticalOption,
    WhereOption,
    WholeBytesOption,
    column_names,
    complete_place,
)
from tensorrepo.cli.sdk_handle import streamed_handle
from tensorrepo.datasets.dataset import Dataset
from tensorrepo.datasets.search import SearchResult
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.dataset.schema.cells import value_text
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.formats.dataset.schema.types import Text
from tensorrepo.formats.dataset.searching.nearest import METRICS
from tensorrepo.repo.errors import InvalidInputError, NoSuchRowError


def search_command(
    call: RepoCall,
    entry: Annotated[
        str,
        Argument(metavar="[REF:]DATASET", help="A dataset or view.", autocompletion=complete_place),
    ],
    column: Annotated[
        str, Argument(metavar="COLUMN", help="Of text, or of vectors; two with a comma for both.")
    ],
    text: Annotated[str | None, Option("--text", help="Words to look for.")] = None,
    vector: Annotated[
        str | None, Option("--vector", metavar="FILE.npy", help="One vector, or several.")
    ] = None,
    like: Annotated[
        str | None, Option("--like", metavar="ROW", help="Number or id of a row: what is near it.")
    ] = None,
    k: Annotated[int, Option("-k", "--k", min=1, help="How many rows.")] = 10,
    distance: Annotated[
        str | None, Option("--distance", help=f"One of {', '.join(METRICS)}; of vectors.")
    ] = None,
    exact: Annotated[bool, Option("--exact", help="Compare every row; ask no index.")] = False,
    where: WhereOption = None,
    columns: ColumnsOption = None,
    vertical: VerticalOption = False,
    whole_bytes: WholeBytesOption = "1KiB",
) -> None:
    """Look for rows that fit words, or whose vectors are near one.

    By an index, where `index create` made one; else every row is compared. Words rank rows by BM25,
    the best first; vectors by their distance, the nearest first: Euclidean, one minus the cosine,
    or minus the inner product. With --like the row itself is left out. Two columns, one of text and
    one of vectors, rank together: --text for one, --vector or --like for the other.

    Examples:
        tensorrepo search photos caption --text "red car"
        tensorrepo search photos embedding --like 17 --where "label == 'cat'"
        tensorrepo search v1:photos embedding --vector query.npy --distance cosine -k 3 --json
        tensorrepo search photos caption,embedding --text "red car" --like 17
    """
    whole = byte_size("--bytes", whole_bytes)
    both = "," in column
    if sum(each is not None for each in (vector, like)) + (text is not None) != 1 + both or (
        both and text is None
    ):
        raise InvalidInputError(
            "say what to look for: --text, and --vector or --like, as COLUMN is two columns"
            if both
            else "say what to look for: one of --text, --vector and --like"
        )
    if not both and text is not None and distance is not None:
        raise InvalidInputError("--distance is of vectors, and --text looks for words")
    dataset, metric = streamed_handle(call, entry), distance or METRICS[0]
    asked: dict[str, Any] = {"where": where, "columns": column_names(columns), "exact": exact}
    if both:
        found = _hybrid(
            call, dataset, column, str(text), vector, like, k, asked | {"metric": metric}
        )
    elif text is not None:
        found = dataset.search(column, text, k, **asked)
    elif vector is not None:
        found = dataset.nearest(column, _vectors(call, vector), k, metric=metric, **asked)
    else:
        row, query = _like(dataset, column, str(like))
        found = _without(row, dataset.nearest(column, query, k + 1, metric=metric, **asked), k)
    _show(call, found, vertical=vertical, whole_bytes=whole)


def _hybrid(
    call: RepoCall,
    dataset: Dataset,
    columns: str,
    text: str,
    vector: str | None,
    like: str | None,
    k: int,
    asked: dict[str, Any],
) -> SearchResult:
    """Rows ranked by two columns."""
    names = [each.strip() for each in columns.split(",")]
    words = [name for name in names if isinstance(dataset.schema.column(name).type, Text)]
    if len(names) != 2 or len(words) != 1:
        raise InvalidInputError(f"{columns!r}: expected one column of text and one of vectors")
    (other,) = [name for name in names if name not in words]
    if like is None:
        return dataset.hybrid({words[0]: text, other: _vectors(call, str(vector))}, k, **asked)
    row, query = _like(dataset, other, like)
    return _without(row, dataset.hybrid({words[0]: text, other: query}, k + 1, **asked), k)


def _like(dataset: Dataset, column: str, name: str) -> tuple[int, Any]:
    """A row, and its vector."""
    row = _row(dataset, name)
    query = dataset[column][row]
    if not isinstance(query, np.ndarray):
        raise InvalidInputError(f"row {name} has no vector in column {column!r}")
    return row, query


def _vectors(call: RepoCall, name: str) -> Any:
    path = call.path(name)
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"--vector {name}: no array of numpy can be read there: {why}. "
            "numpy.save(FILE, vector) makes one"
        ) from error


def _row(dataset: Dataset, name: str) -> int:
    """The number of a row that is named by its number or its id."""
    if name.removeprefix("-").isdigit():
        number = int(name)
        if not -len(dataset) <= number < len(dataset):
            raise NoSuchRowError(f"no row {number}: {dataset.path} has {len(dataset)} rows")
        return number % len(dataset)
    (found,) = dataset.rows_by_id([name]).tolist()
    if found < 0:
        raise NoSuchRowError(f"--like {name}: {dataset.path} has no row of this id")
    return int(found)


def _without(row: int, found: SearchResult, k: int) -> SearchResult:
    return found.taken(np.flatnonzero(found.rows != row)[:k])


def _show(call: RepoCall, found: SearchResult, *, vertical: bool, whole_bytes: int) -> None:
    if call.as_json:
        output.json_lines(value_json(row, whole_bytes) for row in found.records())
        return
    most = output.cell_characters(vertical=vertical)
    rows = [[value_text(value, most) for value in row.values()] for row in found.records()]
    output.data_table(found.names, rows, vertical=vertical)
    output.note(f"{output.counted(len(found), 'row')} {found.told}")
