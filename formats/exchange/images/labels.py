"""Labels of images: join of records with image files, tables beside them.

Labels, COCO and YOLO differ in where they say things; the images are found, checked and read in
one way. Names lead to files inside the folder only.

    metadata.csv 1.png 2.png        file_name,label,caption

One row a row of the table, in its order, with all its columns; a file may have several rows. The
table is found by itself when it is the only one in the folder whose names lead to files, as Hugging
Face's image folders have it. A row without its file, or a file without a row, is an error unless
such are left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import first_names
from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.json import decode_json
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnBatch,
    Image,
    InputBatch,
    Json,
    Schema,
    Text,
)
from tensorrepo.formats.exchange.base import (
    Damage,
    Ignore,
    ImportOrigin,
    OpenedSource,
    columns_of,
    file_bytes,
    grouped,
    origin_of,
)
from tensorrepo.formats.exchange.images.walk import (
    CLASSES_FILE,
    ImageFile,
    read_head,
    read_whole,
    walk_images,
)
from tensorrepo.formats.exchange.json_records import read_record, scan
from tensorrepo.formats.exchange.tables.csv import SUFFIXES as CSV_SUFFIXES
from tensorrepo.formats.exchange.tables.csv import read_csv
from tensorrepo.formats.exchange.tables.jsonl import SUFFIXES as JSONL_SUFFIXES
from tensorrepo.formats.exchange.tables.jsonl import infer_schema, read_jsonl
from tensorrepo.formats.exchange.tables.samples import size_of
from tensorrepo.formats.images.headers import codec_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError

MISSING_ADVICE = "Mend it, or leave such rows and files out: missing=skip"


def find_image(folder: Path, name: str) -> ImageFile | None:
    """The image called `name`, None without one. Raises InvalidInputError: outside, or no image."""
    relative = PurePosixPath(name)
    if not name or relative.is_absolute() or ".." in relative.parts or "\0" in name:
        raise damage(folder, f"{name!r} is no name of a file inside this folder")
    path = folder / relative
    with refusals(path, "image"):
        if not path.is_file():
            return None
        codec = codec_of(read_head(str(path)))
        stored = path.stat().st_size
    if codec is None:
        raise damage(path, "is no image (PNG, JPEG, GIF, BMP, TIFF or WebP)")
    return ImageFile(relative.as_posix(), str(path), stored, codec)


def image_column(codecs: Iterable[str]) -> Column:
    """The column `image`: of one codec when all are, else mixed."""
    kinds = set(codecs)
    return Column("image", Image(kinds.pop() if len(kinds) == 1 else None))


def image_batches(
    rows: Iterable[tuple[ImageFile, dict[str, Any], int]],
    names: Iterable[str],
    met: Damage,
) -> Iterator[ColumnBatch]:
    """Rows with the bytes of their images, as batches of bounded bytes.

    Args:
        rows: an image, the values of the other columns, and about how many bytes those take.
        names: names of the columns; `width` and `height` are measured where rows lack them.
        met: told of images that are damaged.
    """
    wanted = tuple(names)

    def read() -> Iterator[tuple[dict[str, Any], int]]:
        for number, (file, values, taken) in enumerate(rows):
            try:
                data, header = read_whole(file)
            except InvalidInputError as problem:
                met.meet(file.path, number, problem)
                continue
            measured = {"width": header.width, "height": header.height}
            size = file.bytes + taken + 64 * len(wanted)
            yield {**measured, **values, "image": data}, size

    for group in grouped(read()):
        yield columns_of(group, wanted)


def name_key(name: str) -> int:
    """64 bits that stand for a file name, so that millions of names fit into memory."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))


def read_text(path: Path, what: str, max_bytes: int) -> str:
    """A small text file. Raises InvalidInputError: larger than `max_bytes`, or not UTF-8."""
    with refusals(path, what, UnicodeDecodeError), path.open("rb") as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise damage(path, f"is larger than {max_bytes} bytes, too large for a {what}")
        return data.decode("utf-8-sig")


FILE_COLUMNS = ("file_name", "file", "filename", "image", "path", "image_path", "file_path")
TABLE_NAMES = ("metadata", "labels", "annotations")  # such a table is never passed over as broken
_SUFFIXES = (*CSV_SUFFIXES, *JSONL_SUFFIXES, ".json")
_BLOCK_RECORDS = 4096
_MAX_OBJECT_BYTES = 64 << 20  # of a JSON object that maps files to labels, which is read whole
_TRIED_ROWS = 16


@dataclass(frozen=True, slots=True)
class LabelTable:
    """A table that names image files: `open` walks it anew; `column` holds the names."""

    path: Path
    column: str
    open: Callable[[], OpenedSource]


def find_labels(folder: Path, file_column: str | None = None) -> LabelTable | None:
    """The one table in `folder` whose rows name files there; None when there is none.

    Raises:
        InvalidInputError: there are several, or one called as such tables are cannot be read.
    """
    with refusals(folder, "folder"):
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    found: list[LabelTable] = []
    for name in names:
        if name.lower().endswith(_SUFFIXES):
            try:
                table = open_labels(folder, name, file_column)
                if _names_files(table, folder):
                    found.append(table)
            except Error:
                if Path(name).stem in TABLE_NAMES:
                    raise
                # Else it is some other table, which nobody asked for.
    if len(found) > 1:
        names = [table.path.name for table in found]
        raise damage(folder, f"holds several tables of labels: {first_names(names)}. Say which")
    return found[0] if found else None


def open_labels(folder: Path, name: str, file_column: str | None = None) -> LabelTable:
    """The table called `name`, relative to `folder`.

    Raises:
        NotFoundError: no such file.
        InvalidInputError: not a table, or no column of it names files.
    """
    path = folder / name
    if not path.is_file():
        raise NotFoundError(f"{path}: no such table of labels")
    opener = _opener(path)
    schema = opener().schema
    texts = [column.name for column in schema.columns if isinstance(column.type, Text)]
    if file_column is not None:
        if file_column not in texts:
            raise damage(path, f"has no column {file_column!r} of text; there are {texts}")
        return LabelTable(path, file_column, opener)
    likely = [column for column in FILE_COLUMNS if column in texts]
    if not likely:
        raise damage(path, f"no column names files; say which: file_column=..., of {texts}")
    return LabelTable(path, likely[0], opener)


def read_labelled(
    folder: Path, table: LabelTable, ignore: Ignore, *, missing: bool, met: Damage
) -> OpenedSource:
    """The rows of a table with the images that they name.

    Names are relative to `folder`, unless they are to that of the table. With `missing` rows
    without a file, and files without a row, are left out.
    """
    base = table.path.parent if _names_files(table, table.path.parent) else folder
    files, codecs, rows = _survey(base, table, skip=missing)
    alone = _without_rows(folder, base, ignore, files)
    if alone and not missing:
        what = f"has no row for {first_names(alone)} in {folder}. {MISSING_ADVICE}"
        raise damage(table.path, what)
    columns, file_name = _columns(table)
    schema = Schema((image_column(codecs), *columns))
    notes = [f"labels from {table.path.name}, column {table.column!r}"]
    if alone:
        notes.append(f"files without a row left out: {first_names(alone)}")
    return OpenedSource(
        schema=schema,
        rows=None if met.skip else rows,
        batches=_batches(base, table, schema, file_name, missing=missing, met=met),
        origin=ImportOrigin(
            str(folder), "images", 1 + len(files.bytes), file_bytes(table.path) + sum(files.bytes)
        ),
        notes=tuple(notes),
        damage=met,
    )


# ------------------------------------------------------------------------------ the table


def _opener(path: Path) -> Callable[[], OpenedSource]:
    name = path.name.lower()
    if name.endswith(CSV_SUFFIXES):
        return lambda: read_csv(path)
    if name.endswith(JSONL_SUFFIXES):
        return lambda: read_jsonl(path, json_columns=("*",))
    if name.endswith(".json"):
        return lambda: _read_json(path)
    raise damage(path, f"is no table of labels; expected {', '.join(_SUFFIXES)}")


def _read_json(path: Path) -> OpenedSource:
    """A JSON list of objects, or an object that maps files to labels or to objects."""
    blocks = _json_blocks(path)
    first = next(blocks, None)
    if not first:
        raise damage(path, "holds no JSON objects")
    schema = infer_schema(path, first, ("*",))

    def batches() -> Iterator[ColumnBatch]:
        for block in chain([first], blocks):
            for row in block:
                if unknown := row.keys() - set(schema.names):
                    raise damage(path, f"a later record has a new key {min(unknown)!r}")
            yield columns_of(block, schema.names)

    return OpenedSource(schema, None, batches(), origin_of(path, "json", [path]))


def _json_blocks(path: Path) -> Iterator[list[dict[str, Any]]]:
    with refusals(path, "JSON file"), path.open("rb") as file:
        if file.read(64).lstrip()[:1] == b"{":
            yield from _mapped(path)
            return
        records = (read_record(path, file, span, dict[str, Any]) for span in scan(path))
        yield from grouped(((record, 1) for record in records), _BLOCK_RECORDS)


def _mapped(path: Path) -> Iterator[list[dict[str, Any]]]:
    """``{"1.png": 3}`` or ``{"1.png": {"label": 3}}`` as records."""
    if file_bytes(path) > _MAX_OBJECT_BYTES:
        raise damage(path, "is one very large JSON object. Write it as a list, or as JSON lines")
    whole = decode_json(path, path.read_bytes(), dict[str, Any])
    yield [
        {"file_name": name, **(value if isinstance(value, dict) else {"label": value})}
        for name, value in whole.items()
    ]


def _names_files(table: LabelTable, folder: Path) -> bool:
    """Whether the first rows lead to image files."""
    batch = next(iter(table.open().batches), None)
    names = [] if batch is None else _texts(batch, table.column)[:_TRIED_ROWS]
    return any(find_image(folder, name) is not None for name in names if name)


def _texts(batch: InputBatch, column: str) -> list[Any]:
    values: Any = batch[column]  # type: ignore[call-overload]  # tables give columns, never rows
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        return list(values)
    # Python has no nanoseconds: moments go as the counts that they are.
    plain = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
    return list(plain.to_pylist())


# ------------------------------------------------------------------------------ files and rows


@dataclass(slots=True)
class _Files:
    """The files that rows name: 64 bits for each name, and how large each row's file is."""

    keys: array[int]
    bytes: array[int]


def _survey(base: Path, table: LabelTable, *, skip: bool) -> tuple[_Files, set[str], int]:
    """A first walk over the table: which files its rows name."""
    files, codecs, absent = _Files(array("Q"), array("Q")), set(), []
    for _, name, file in _named(base, table):
        if file is None:
            absent.append(name)
            continue
        files.keys.append(name_key(file.relative))
        files.bytes.append(file.bytes)
        codecs.add(file.codec)
    if absent and not skip:
        names = first_names(list(map(str, absent)))
        what = f"names {names}, and there are no such files. {MISSING_ADVICE}"
        raise damage(table.path, what)
    if not files.keys:
        raise damage(table.path, "no row names a file that is there")
    return files, codecs, len(files.keys)


def _named(base: Path, table: LabelTable) -> Iterator[tuple[dict[str, Any], Any, ImageFile | None]]:
    """Each row of the table, the file that it names, and that file where it is there."""
    for batch in table.open().batches:
        columns = {name: _texts(batch, name) for name in _names_of(batch)}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            name = row[table.column]
            yield row, name, find_image(base, name) if name else None


def _names_of(batch: InputBatch) -> Sequence[str]:
    if isinstance(batch, pa.RecordBatch | pa.Table):
        return list(batch.schema.names)
    return list(batch)


def _without_rows(folder: Path, base: Path, ignore: Ignore, files: _Files) -> list[str]:
    """Image files that no row names."""
    keys: NDArray[np.uint64] = np.unique(np.frombuffer(files.keys, np.uint64))
    prefix = PurePosixPath(base.relative_to(folder).as_posix())
    alone = []
    for image in walk_images(folder, ignore, [], examined=True):
        relative = PurePosixPath(image.relative)
        inside = relative.is_relative_to(prefix)
        name = str(relative.relative_to(prefix)) if inside else ""
        key = np.uint64(name_key(name))
        at = int(np.searchsorted(keys, key))
        if inside and name != CLASSES_FILE and (at == len(keys) or keys[at] != key):
            alone.append(image.relative)
    return alone


def _columns(table: LabelTable) -> tuple[list[Column], str]:
    """The columns of the table as they are stored, and what the one with names is called.

    `image` is where the pictures go: a column of names called so becomes `file`.
    """
    columns = list(table.open().schema.columns)
    names = [column.name for column in columns]
    file_name = "file" if table.column == "image" else table.column
    clash = "image" in names and table.column != "image"
    if clash or (table.column == "image" and "file" in names):
        raise damage(table.path, "has a column 'image' besides the one with names. Rename it")
    at = names.index(table.column)
    columns[at] = replace(columns[at], name=file_name, nullable=False)
    return columns, file_name


def _batches(
    base: Path, table: LabelTable, schema: Schema, file_name: str, *, missing: bool, met: Damage
) -> Iterator[ColumnBatch]:
    def rows() -> Iterator[tuple[ImageFile, dict[str, Any], int]]:
        for row, name, file in _named(base, table):
            if file is None:
                if missing:
                    continue
                raise damage(table.path, f"names {name!r}, which is gone")
            row[file_name] = row.pop(table.column)
            yield file, row, sum(map(size_of, row.values()))

    for batch in image_batches(rows(), schema.names, met):
        yield {column.name: _typed(column, batch[column.name]) for column in schema.columns}


def _typed(column: Column, values: Any) -> Any:
    """Values as their column wants them: Arrow where Python's own would lose their type."""
    if isinstance(column.type, Json) or column.name == "image":
        return values
    wanted = Schema((column,)).to_arrow().field(0).type
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, InvalidInputError, msgspec.MsgspecError):
        return values  # the writer says which value does not fit
