"""Files of tables as one source: schemas, folders of files, Arrow types as columns.

A table format only says how one file is opened. Here several files of a folder become one dataset,
in the order of their names and with one schema; foreign columns are brought into types that a
dataset has; every batch is validated, since Arrow itself trusts offsets, and cut to bounded bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.arrow_forms import is_list, without_dictionary
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    ColumnBatch,
    Image,
    Schema,
    Values,
)
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    OpenedSource,
    origin_of,
    source_files,
)
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_main import (
    ARROW_ERRORS,
    NULL_ELEMENTS_KEY,
    TableFile,
)
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column
from tensorrepo.formats.exchange.tables.partitions import with_partitions
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError


def is_any_list(kind: pa.DataType) -> bool:
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


_HUGGING_FACE = b"huggingface"
_UNNAMED = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True, slots=True)
class Adapted:
    """How one Arrow field becomes a column: its type here, and what to do with its arrays."""

    column: Column
    convert: Callable[[pa.Array], Values]


def read_tables(
    path: Path,
    name: str,
    suffixes: tuple[str, ...],
    open_file: Callable[[Path], TableFile | None] | None,
    choice: ColumnChoice,
) -> OpenedSource:
    """One file, or the files with these suffixes in a folder, as one dataset.

    Folders called ``name=value`` are columns.

    Without `open_file` they are opened in a child process, by its reader called `name`. A file of
    which it gives None is passed over.

    Raises:
        InvalidInputError: no such files, a damaged one, or schemas that differ.
        UnsupportedError: columns that no column type holds; names all of them.
    """
    files = table_files(path, suffixes)
    if open_file is None:
        opened = open_files(name, files)
    else:
        tables = ((file, open_file(file)) for file in files)
        opened = {file: table for file, table in tables if table is not None}
    files = list(opened)
    if not files:
        raise damage(path, f"holds no files that end in {' or '.join(suffixes)} and may be read")
    with naming_file(path):
        opened = with_partitions(path, opened)
    first = opened[files[0]].schema
    for file, table in opened.items():
        if not table.schema.equals(first):
            raise damage(file, f"differs from {files[0]}: {_difference(first, table.schema)}")
    counts = [table.rows for table in opened.values()]
    with naming_file(path):
        adapted = adapt(_with_marks(first, [table.schema for table in opened.values()]), choice)
        schema = Schema(tuple(item.column for item in adapted))
    return OpenedSource(
        schema=schema,
        rows=None if None in counts else sum(count or 0 for count in counts),
        batches=table_batches(opened, adapted),
        origin=origin_of(path, name, files),
        notes=tuple(_index_notes(first, schema)),
    )


def _with_marks(first: pa.Schema, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """`first`, with a mark on each list that holds a null number in any of the files."""
    for at, field in enumerate(first):
        noted = [schema.field(at).metadata or {} for schema in schemas]
        if any(NULL_ELEMENTS_KEY in each for each in noted):
            marked = {**(field.metadata or {}), NULL_ELEMENTS_KEY: b"1"}
            first = first.set(at, field.with_metadata(marked))
    return first


def table_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a table in the order of their paths; hidden and `_metadata` ones left out."""
    what = f"files that end in {' or '.join(suffixes)}"
    return source_files(path, lambda name: name.endswith(suffixes), what, (".", "_"))


def has_table_files(candidate: Candidate, suffixes: tuple[str, ...]) -> bool:
    return candidate.is_folder and any(
        name.name.lower().endswith(suffixes) and not name.name.startswith(("_", "."))
        for name in candidate.names
    )


def adapt(schema: pa.Schema, choice: ColumnChoice) -> list[Adapted]:
    """How the chosen fields of a foreign schema become columns.

    Data sets published by Hugging Face say in their metadata which columns are images and what
    their classes are called; that is understood. The unnamed index of a pandas table is no column.

    Raises:
        NotFoundError: chosen columns that are not there; names all of them.
        UnsupportedError: columns that no column type holds; names all of them.
    """
    features = features_of(schema)
    fields = {field.name: field for field in schema}
    if len(fields) < len(schema):
        twice = [repr(name) for name, count in Counter(schema.names).items() if count > 1]
        raise InvalidInputError(f"has two columns called {' and '.join(twice)}")
    chosen = choice.of(fields, unnamed_index(schema))
    return each_column(chosen, lambda name: _adapt_field(fields[name], features.get(name, {})))


def unnamed_index(schema: pa.Schema) -> list[str]:
    """The columns in which pandas keeps an index that nobody gave a name."""
    try:
        form = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        levels = form.get("index_columns", [])
        return [level for level in levels if isinstance(level, str) and _UNNAMED.fullmatch(level)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def _index_notes(found: pa.Schema, schema: Schema) -> Iterator[str]:
    for name in unnamed_index(found):
        if name not in schema:
            yield f"left out {name!r}, the unnamed index of a pandas table; columns=... takes it"


def _adapt_field(field: pa.Field, feature: Mapping[str, Any]) -> Adapted:
    kind = feature.get("_type")
    names = feature.get("names")
    if kind == "ClassLabel" and isinstance(names, list) and pa.types.is_integer(field.type):
        # Hugging Face writes a missing label as -1.
        label = Column(field.name, ClassLabel(tuple(names)), nullable=True)
        return Adapted(label, lambda array: null_below_zero(array.cast(pa.int64())))
    if (
        kind == "Image"
        and pa.types.is_struct(field.type)
        and field.type.get_field_index("bytes") >= 0
    ):
        return Adapted(
            Column(field.name, Image(), nullable=True), lambda array: array.field("bytes")
        )
    return adapt_plain(field, field.type)


def adapt_plain(field: pa.Field, stored: pa.DataType) -> Adapted:
    """The column for Arrow's own type; `stored` is read in its place."""
    plain = pa.field(field.name, stored, field.nullable, field.metadata)
    # An id belongs to the dataset that the file came from, not to the one that it goes to.
    (column,) = Schema.from_arrow(pa.schema([plain])).without_ids().columns
    if pa.types.is_dictionary(stored):
        return Adapted(column, lambda array: without_dictionary(storage(array)))
    return Adapted(column, lambda array: array if array.type == stored else storage(array))


def storage(array: pa.Array) -> pa.Array:
    """An array without its extension type."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def table_batches(
    opened: Mapping[Path, TableFile], adapted: Sequence[Adapted]
) -> Iterator[ColumnBatch]:
    """The rows of several files in order, validated and cut to bounded bytes."""
    for file, table in opened.items():
        row = 0
        with refusals(file, "table", *ARROW_ERRORS):
            for batch in table.batches():
                for piece in _pieces(batch):
                    yield _converted(file, row, piece, adapted)
                    row += piece.num_rows


def _converted(
    file: Path, row: int, batch: pa.RecordBatch, adapted: Sequence[Adapted]
) -> ColumnBatch:
    converted = {}
    for item in adapted:
        array = batch.column(item.column.name)
        try:
            # Offsets that point outside their buffer would crash whoever follows them.
            array.validate(full=True)
            converted[item.column.name] = item.convert(array)
        except pa.ArrowException as problem:
            where = f"{file}, column {item.column.name!r}, at or after row {row}"
            raise damage(where, str(problem)) from problem
    return converted


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in slices of bounded bytes, at least a row each."""
    parts = max(1, -(-batch.nbytes // BATCH_BYTES))
    step = max(1, -(-batch.num_rows // parts))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def features_of(schema: pa.Schema) -> dict[str, Mapping[str, Any]]:
    """What Hugging Face's metadata say of columns; empty without them."""
    try:
        form = json.loads((schema.metadata or {}).get(_HUGGING_FACE, b"{}"))
        features = form.get("info", {}).get("features", {})
        return {name: item for name, item in features.items() if isinstance(item, dict)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def null_below_zero(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.less(array, 0), None, array)


def _difference(first: pa.Schema, other: pa.Schema) -> str:
    """The first thing in which two schemas differ, as a sentence says it."""
    for name in first.names:
        if name not in other.names:
            return f"it lacks column {name!r}"
        if not first.field(name).equals(other.field(name)):
            return f"column {name!r} is {other.field(name).type}, not {first.field(name).type}"
    extra = [name for name in other.names if name not in first.names]
    return f"it adds column {extra[0]!r}" if extra else "its columns come in another order"


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Say in errors about a schema which file has it."""
    try:
        yield
    except NotFoundError as problem:
        raise NotFoundError(f"{path}: {problem}") from problem
    except InvalidInputError as problem:
        raise InvalidInputError(f"{path}: {problem}") from problem
    except UnsupportedError as problem:
        raise UnsupportedError(f"{path}: {problem}") from problem
    except ARROW_ERRORS as problem:  # a name that is not UTF-8, an extension that lies
        raise damage(path, f"has a damaged schema: {problem}") from problem
