"""Mappings of columns as rows: arrays of numpy, torch, pandas, polars and Arrow, and lists.

Each column is told by itself. What Arrow takes goes the way of all Arrow fields; arrays of numpy
are what they are; of lists of pictures, arrays and nested lists every value is looked at, without
being encoded, and values are converted batch by batch.

Columns of arrays are not nullable, unless masked. All others are: lists may lack a value anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.dataset.schema.arrow_forms import is_text
from tensorrepo.formats.dataset.schema.arrow_losses import says_all
from tensorrepo.formats.dataset.schema.lenient import batch_part
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnBatch,
    ColumnLayout,
    ColumnType,
    Image,
    InputBatch,
    Json,
    List,
    Map,
    Schema,
    Struct,
    Text,
    Values,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.exchange.base import BATCH_BYTES, ImportOrigin, OpenedSource, grouped
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column
from tensorrepo.formats.exchange.tables.files import adapt
from tensorrepo.formats.exchange.tables.nested_values import (
    even_rows,
    is_matrix,
    nested_array,
    nested_kind,
)
from tensorrepo.formats.exchange.tables.samples import (
    column_of,
    image_file,
    kind_of,
    moments_of,
    naming_column,
    plain,
    size_of,
    stored_form,
)
from tensorrepo.formats.images.encode import is_picture
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

_SIZED = 64  # values of a list that are weighed
_BATCH_ROWS = 1 << 16
_CHANNELS = range(1, 5)  # of the last dimension of one image


@dataclass(frozen=True, slots=True)
class _Part:
    """One column: its values in memory, and what makes the writer's values of some of them."""

    column: Column
    values: Any
    convert: Callable[[Any], Values]
    row_bytes: int


def read_columns(
    given: Mapping[str, Any],
    *,
    choice: ColumnChoice,
    schema: Schema | None = None,
    what: str = "",
) -> OpenedSource:
    """Columns by name, of equal length, as rows; or one row, where `schema` tells that it is one.

    Args:
        given: arrays, Arrow arrays, series, tensors or lists.
        choice: columns that are wanted, and their types.
        schema: the columns, when they are known.
        what: word for the whole in messages.

    Raises:
        InvalidInputError: columns of different lengths, or without a type; names all of them.
        UnsupportedError: columns that no column type holds; names all of them.
    """
    what = what or type(given).__name__
    origin = ImportOrigin(what, "columns", 0, 0)
    if schema is not None:
        batch = {name: given[name] for name in choice.of(given)}
        if is_row(schema, batch):
            batch = {name: [value] for name, value in batch.items()}
        values = {name: _as_values(each) for name, each in batch.items()}
        return OpenedSource(schema, None, with_image_files(schema, iter([values])), origin)
    try:
        parts = _parts({str(name): value for name, value in given.items()}, choice)
    except (InvalidInputError, UnsupportedError, NotFoundError) as problem:
        raise type(problem)(f"{what}: {problem}") from problem
    lengths = {part.column.name: len(part.values) for part in parts}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r}: {rows}" for name, rows in lengths.items())
        raise damage(what, f"columns of one dataset have equally many rows, found {listed}")
    found = Schema(tuple(part.column for part in parts))
    batches = with_image_files(found, _batches(parts))
    return OpenedSource(found, len(parts[0].values), batches, origin)


def with_image_files(schema: Schema, batches: Iterable[InputBatch]) -> Iterator[InputBatch]:
    """Batches of a user's own objects, with the images whose paths they have, in bounded bytes.

    Of foreign files this would be a hole: whoever wrote one could have any file read. A path of
    no file stays, and is refused by the writer, which names its row.
    """
    images = [column.name for column in schema.columns if isinstance(column.type, Image)]
    for batch in batches:
        parts = _with_files(batch, images) if images else None
        yield from [batch] if parts is None else parts


def _with_files(batch: InputBatch, images: list[str]) -> Iterator[InputBatch] | None:
    """Parts of a batch, with the bytes of files; None where it has no paths."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        batch = dict(zip(batch.schema.names, batch.columns, strict=True))
    if not isinstance(batch, Mapping):
        return _rows_with_files(batch, images)
    paths = {name: found for name in images if (found := _paths(batch.get(name))) is not None}
    return _columns_with_files(batch, paths) if paths else None


def _rows_with_files(
    rows: Sequence[Mapping[str, Any]], images: list[str]
) -> Iterator[Sequence[Mapping[str, Any]]]:
    filled = (
        {name: image_file_of(value) if name in images else value for name, value in row.items()}
        for row in rows
    )
    yield from grouped((row, sum(map(size_of, row.values()))) for row in filled)


def image_files(values: Any) -> list[Any] | None:
    """A column of images as a list, if it may have paths in place of images; else None."""
    return _paths(values)


def image_groups(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Images and paths of images, with the bytes of files, in groups of bounded bytes."""
    return grouped((value, size_of(value)) for value in map(image_file_of, values))


def _columns_with_files(
    batch: ColumnBatch, paths: Mapping[str, list[Any]]
) -> Iterator[dict[str, Any]]:
    rows = zip(*paths.values(), strict=True)
    read = ([image_file_of(value) for value in row] for row in rows)
    first = 0
    for group in grouped((row, sum(map(size_of, row))) for row in read):
        part = cast("ColumnBatch", batch_part(batch, first, first + len(group)))
        files = zip(paths, map(list, zip(*group, strict=True)), strict=True)
        yield {**part, **dict(files)}
        first += len(group)


def _paths(values: Any) -> list[Any] | None:
    """A column as a list, if it may have paths of files."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        return values.to_pylist() if is_text(kind) else None
    if isinstance(values, np.ndarray):
        return list(values) if values.dtype.kind in "OU" else None
    has_paths = isinstance(values, list) and any(map(_is_path, values))
    return values if has_paths else None


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def image_file_of(value: Any) -> Any:
    """The bytes of the file that a path names; what is none stays, for the writer to name."""
    if not _is_path(value):
        return value
    try:
        return image_file(Path(value))
    except InvalidInputError:
        return Path(value)


def is_of(given: object, library: str, name: str) -> bool:
    """Whether an object is a library's class of this name, told without importing it."""
    kinds = (f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(given).__mro__)
    return f"{library}.{name}" in kinds


def as_column(values: Any) -> Any:
    """A series of pandas or polars as an array or a list, as `read_columns` has it; else `values`.

    Iterated over, it would be single values, and NaN of pandas would not stand for what is missing.
    """
    is_pandas = is_of(values, "pandas", "Series") or is_of(values, "pandas", "Index")
    return _as_values(values) if is_pandas or is_of(values, "polars", "Series") else values


def is_of_objects(given: Any) -> bool:
    """Whether this is a series of polars that holds objects, for which Arrow gets addresses."""
    return is_of(given, "polars", "Series") and str(given.dtype) == "Object"


def _parts(given: Mapping[str, Any], choice: ColumnChoice) -> list[_Part]:
    def part(name: str) -> _Part:
        with naming_column(name):
            values = _as_values(given[name])
            declared = choice.declared(name, nullable=not isinstance(values, np.ndarray))
            return _part(name, values) if declared is None else _declared(declared, values)

    parts = each_column(choice.of(given), part)
    if not parts:
        raise InvalidInputError("holds no columns")
    return parts


def _as_values(given: Any) -> Any:
    """A column as an array of numpy, of Arrow, or a list. Raises InvalidInputError: none."""
    if is_torch(given):
        given = plain(given, "png")
    single = is_picture(given) or isinstance(given, str | bytes | Mapping)
    if single or not isinstance(given, Iterable):
        raise InvalidInputError(f"is {type(given).__name__} {given!r:.40}; expected a value a row")
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return given
    if is_of(given, "pandas", "Series") or is_of(given, "pandas", "Index"):
        return _of_pandas(given)
    if is_of_objects(given):
        return list(given)
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return pa.chunked_array(given)
    if isinstance(given, np.ndarray):
        if not given.ndim:
            raise InvalidInputError("is a single value; expected one for each row")
        return list(given) if given.dtype.kind in "OT" else given
    return given if isinstance(given, list) else list(given)


def _of_pandas(series: Any) -> Any:
    """A series as Arrow's array; one of objects that Arrow does not know as a list."""
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # NaN stands for what is missing, as everywhere in pandas.
        return [None if value is None or value != value else value for value in _listed(series)]  # noqa: PLR0124
    return array if not pa.types.is_nested(array.type) else _listed(series)


def _listed(series: Any) -> list[Any]:
    values = list(series)
    missing = series.isna().tolist()
    return [None if lacks else value for value, lacks in zip(values, missing, strict=True)]


def _part(name: str, values: Any) -> _Part:
    if isinstance(values, list):
        array = _simple(values)
        if array is None:
            lists = _of_lists(name, values)
            return lists or _of_objects(column_of(name, _kinds_of(values)), values)
        values = array
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        values = moments_of(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _of_arrow(name, values)
    return _of_numpy(name, values)


def _declared(column: Column, values: Any) -> _Part:
    """A column whose type the caller says: the writer converts the values."""
    if isinstance(values, list):
        return _of_objects(column, values)
    return _Part(column, values, lambda part: part, _row_bytes(values))


def _simple(values: list[Any]) -> pa.Array | None:
    """A list as Arrow's array, where its values are numbers, text, bytes or moments."""
    if any(isinstance(value, os.PathLike) for value in values[:1]):
        return None
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    unknown = pa.types.is_null(array.type) or pa.types.is_nested(array.type)
    return array if not unknown and says_all(values, array.type, inferred=True) else None


def _of_lists(name: str, values: list[Any]) -> _Part | None:
    """Lists and dicts that Arrow takes all at once; None: each value has to be looked at."""
    first = next((value for value in values if value is not None), None)
    if not isinstance(first, list | tuple | dict | np.ndarray):
        return None
    array = nested_array(values)
    kind = None if array is None else nested_kind(array, name)
    if array is None or kind is None or is_matrix(array.type):
        return None  # whose rows may be arrays of two dimensions
    if (rows := even_rows(array)) is not None:
        column = Column(name, kind_of(np.ma.getdata(rows)[0]), nullable=True)
        return _Part(column, rows, lambda part: part, _row_bytes(rows))
    return _Part(Column(name, kind, nullable=True), array, lambda part: part, _row_bytes(array))


def _kinds_of(values: Iterable[Any]) -> Iterator[Any]:
    """Values by which a column is told; of all pictures one stands for the rest, unencoded."""
    picture = None
    for value in values:
        if not is_picture(value):
            yield plain(value, "png")
        elif picture is None:
            picture = plain(value, "png")
            yield picture


def _of_objects(column: Column, values: list[Any]) -> _Part:
    def convert(part: list[Any]) -> list[Any]:
        return [_stored(column, value) for value in part]

    weighed = [size_of(value) for value in values[:: max(1, len(values) // _SIZED)]]
    row_bytes = sum(weighed) // max(1, len(weighed))
    kept = Column(column.name, column.type, nullable=True, default=column.default)
    return _Part(kept, values, convert, row_bytes)


def _stored(column: Column, value: Any) -> Any:
    """A value as the writer takes it; one that does not fit as it is, for the writer to name."""
    if value is None or _is_path(value):
        return value
    try:
        return stored_form(column, plain(value, "png"))
    except InvalidInputError:
        return value


def _of_arrow(name: str, values: Any) -> _Part:
    (adapted,) = adapt(pa.schema([pa.field(name, values.type)]), ColumnChoice())

    def convert(part: Any) -> Values:
        return adapted.convert(part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part)

    return _Part(adapted.column, values, convert, _row_bytes(values))


def _of_numpy(name: str, values: np.ndarray[Any, Any]) -> _Part:
    nullable = np.ma.getmask(values) is not np.ma.nomask
    if values.dtype.kind in "US" and values.ndim == 1:
        kind = Text() if values.dtype.kind == "U" else Bytes()
        column = Column(name, kind, nullable)
        return _Part(column, values, lambda part: part.tolist(), values.dtype.itemsize)
    (row,) = values[:1] if len(values) else [np.empty(values.shape[1:], values.dtype)]
    column = Column(name, kind_of(np.asarray(row)), nullable)
    return _Part(column, values, lambda part: part, _row_bytes(values))


def _row_bytes(values: Any) -> int:
    return int(values.nbytes) // max(1, len(values))


def _batches(parts: Sequence[_Part]) -> Iterator[ColumnBatch]:
    rows = len(parts[0].values)
    row_bytes = max(1, sum(part.row_bytes for part in parts))
    step = max(1, min(_BATCH_ROWS, BATCH_BYTES // row_bytes))
    for first in range(0, rows, step):
        yield {part.column.name: part.convert(part.values[first : first + step]) for part in parts}


def is_row(schema: Schema, given: Mapping[str, Any]) -> bool:
    """Whether a mapping is one row; where no column can tell, it is a batch of columns."""
    return bool(told_row(schema, given))


def told_row(schema: Schema, given: Mapping[str, Any]) -> bool | None:
    """Whether a mapping is one row, and not a batch of columns; None where no column can tell.

    The value of a scalar column is a number in a row, and an array or list of numbers in a batch.
    Any column that can tell decides, wherever it stands.
    """
    for column in schema.columns:
        value = given.get(column.name)
        if value is not None and (decided := _is_one(column, value)) is not None:
            return decided
    return None


def _is_one(column: Column, value: Any) -> bool | None:
    """Whether `value` is one value of the column; None where it cannot be told."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | os.PathLike):
        return True
    if isinstance(column.type, Nested):
        return _is_one_nested(column.type, value)
    storage = column.storage
    shape = _shape(value)
    if storage.layout is ColumnLayout.BINARY:
        return _is_one_binary(column, shape, _is_bytes(value))
    depth = len(storage.shape)
    return {depth: True, depth + 1: False}.get(len(shape)) if None not in shape else None


def _is_one_nested(kind: ColumnType, value: Any) -> bool | None:
    if not isinstance(value, list | tuple | np.ndarray):
        return False  # such as an array of Arrow
    one, many = _may_be(kind, value), _may_be(List(kind), value)
    return None if one == many else one


def _may_be(kind: ColumnType, value: Any) -> bool:
    """Whether a value may be one of such a type, by the first that each list in it holds."""
    if isinstance(value, np.ndarray) and value.ndim:
        value = value.tolist() if value.dtype == np.object_ else value[:1].tolist()
    match kind:
        case Struct():
            return isinstance(value, Mapping)
        case Map(key=key, value=of) if isinstance(value, list | tuple):
            first = _first(value)
            is_pair = isinstance(first, list | tuple) and len(first) == 2
            return first is None or (is_pair and _may_be(key, first[0]) and _may_be(of, first[1]))
        case List(value=of):
            is_many = isinstance(value, list | tuple)
            return is_many and (_first(value) is None or _may_be(of, _first(value)))
    return value is None or not isinstance(value, list | tuple | Mapping)


def _is_one_binary(column: Column, shape: tuple[int | None, ...], is_bytes: bool) -> bool | None:
    if not shape:
        return True  # a link, or a number as JSON
    if isinstance(column.type, Json):
        return None  # a list is as good a value as many values
    if not isinstance(column.type, Image):
        return is_bytes and len(shape) == 1
    if len(shape) == 3:
        return shape[2] in _CHANNELS
    return len(shape) == 2


def _is_bytes(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).removeprefix("torch.") == "uint8"


def _shape(value: Any) -> tuple[int | None, ...]:
    """The shape of an array or of nested lists by their first items; None beyond an empty one."""
    if is_picture(value):  # which Arrow takes for an array of bytes
        return ()
    if hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__"):
        return (len(value), *_shape(_first(value)))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        own = tuple(value.shape)
        nested = own and own[0] and str(value.dtype) == "object"
        return (*own, *_shape(value.reshape(-1)[0])) if nested else own
    if not isinstance(value, list | tuple):
        return ()
    if not value:
        return (0, None)
    return (len(value), *_shape(_first(value)))


def _first(values: Any) -> Any:
    found = next((value for value in values if value is not None), None)
    return found if found is None or not hasattr(found, "as_py") else found.as_py()
