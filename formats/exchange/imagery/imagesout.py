"""Write a dataset as a folder of images, and say whether reading it back gives the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrepo.formats.dataset.columns.schema import ClassLabel, Column, Image, Schema, Text
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, SUFFIXES, codec_of
from tensorrepo.formats.exchange.imagery.images import class_folder, is_split_name, split_names
from tensorrepo.formats.exchange.imagery.imagewalk import CLASSES_FILE
from tensorrepo.formats.exchange.numeric.arraysout import join_names
from tensorrepo.formats.exchange.output import Table, column_refused, new_folder
from tensorrepo.repo.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class ImageColumns:
    """Which columns of a schema say what about an image; every other one has no place."""

    image: Column
    label: Column | None
    split: Column | None
    file: Column | None

    @property
    def codec(self) -> str | None:
        return self.image.type.codec if isinstance(self.image.type, Image) else None


def write_images(table: Table, path: Path, *, overwrite: bool = False) -> None:
    """A folder of image files: `<split>/<class>/<file>`, as far as there are such columns.

    A row's own `file` is kept where it lies in the folder of its class. `classes.txt` keeps the
    numbers of the classes.

    Raises:
        InvalidInputError: a column, class or file name that a folder of images has no place for, or
            two rows with one file name.
    """
    columns = image_columns(table.schema.visible)
    with new_folder(path, overwrite=overwrite) as folder:
        if columns.label is not None:
            (folder / CLASSES_FILE).write_text(join_names(columns.label), "utf-8")
        made: set[Path] = set()
        for number, row in enumerate(_rows(table, table.schema.visible.names)):
            target = folder / _place(columns, row, number)
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            try:
                with target.open("xb") as file:
                    file.write(row[columns.image.name])
            except FileExistsError as problem:
                name = target.relative_to(folder)
                raise InvalidInputError(
                    f"row {number} is not the only one with the file name {str(name)!r}. "
                    "Leave column 'file' out, or export to parquet"
                ) from problem


def reads_back(table: Table) -> bool:
    """Whether reading the folder of images that `table` makes gives the same rows in this order.

    Looks at the light columns alone.
    """
    if not len(table) or not images_suit(table.schema.visible):
        return False
    columns = image_columns(table.schema.visible)
    return _in_order(columns, _rows(table, [n for n in table.schema.visible.names if n != "image"]))


def images_suit(schema: Schema) -> bool:
    """Whether these are the columns that a folder of images is read as."""
    schema = schema.visible
    try:
        columns = image_columns(schema)
    except InvalidInputError:
        return False
    expected = {"image": columns.image, "label": columns.label, "split": columns.split}
    names = [name for name, column in expected.items() if column is not None]
    known = columns.codec is None or columns.codec in SUFFIXES
    return known and columns.file is not None and schema.names == (*names, "file")


def image_columns(schema: Schema) -> ImageColumns:
    """The part that each column of `schema` plays in a folder of images.

    Raises:
        InvalidInputError: a column without a part in it, or no image column.
    """
    parts: dict[str, Column] = {}
    for column in schema.columns:
        part = _part(column)
        if part is None or part in parts:
            raise column_refused(column, "a folder of images has no place for it")
        parts[part] = column
    if "image" not in parts:
        raise InvalidInputError(
            f"a folder of images needs a column of images; there are {', '.join(schema.names)}. "
            "Export to parquet or arrow, which hold every column"
        )
    split = parts.get("split")
    if split is not None and not all(map(is_split_name, _names(split))):
        raise column_refused(split, f"folders {_names(split)} are not read as splits")
    return ImageColumns(parts["image"], parts.get("label"), split, parts.get("file"))


def _part(column: Column) -> str | None:
    match column.type:
        case Image():
            return "image"
        case ClassLabel():
            return "split" if column.name == "split" else "label"
        case Text() if column.name == "file":
            return "file"
    return None


def _names(column: Column) -> tuple[str, ...]:
    return column.type.names if isinstance(column.type, ClassLabel) else ()


def _rows(table: Table, names: tuple[str, ...] | list[str]) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(list(names), max_bytes=BATCH_BYTES):
        lists = [batch.column(name).to_pylist() for name in names]
        for values in zip(*lists, strict=True):
            yield dict(zip(names, values, strict=True))


def _place(columns: ImageColumns, row: dict[str, Any], number: int) -> str:
    """Where the image of a row goes, relative to the folder."""
    folders = _folders(columns, row)
    data = row[columns.image.name]
    if data is None:
        raise column_refused(columns.image, f"row {number} is null, and a folder holds files")
    file = row[columns.file.name] if columns.file is not None else None
    if file is None:
        codec = codec_of(data[:HEAD_BYTES])
        suffix = SUFFIXES[codec][0] if codec else f".{columns.codec or 'bin'}"
        return "/".join((*folders, f"{number:08d}{suffix}"))
    parts = file.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise InvalidInputError(
            f"row {number}, column 'file': {file!r} is no path inside a folder. Leave the column "
            "out, then rows are called by their numbers"
        )
    return file if tuple(parts[: len(folders)]) == folders else "/".join((*folders, file))


def _folders(columns: ImageColumns, row: dict[str, Any]) -> tuple[str, ...]:
    """The folders of split and class that a row's image must lie in."""
    return tuple(
        class_folder(_names(column)[row[column.name]])
        for column in (columns.split, columns.label)
        if column is not None and row[column.name] is not None
    )


def _in_order(columns: ImageColumns, rows: Iterator[dict[str, Any]]) -> bool:
    """Whether files lie where their class says, visible, and in the order of a walk."""
    previous: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        parts = (row["file"] or "").split("/")
        folders = _folders(columns, row)
        labelled = columns.label is not None and row[columns.label.name] is not None
        depth = len(folders)
        inside = tuple(parts[:depth]) == folders and len(parts) > depth
        inside &= labelled or len(parts) == depth + 1
        hidden = any(not part or part.startswith(".") or "\\" in part for part in parts)
        if not inside or hidden or parts <= previous or parts == [CLASSES_FILE]:
            return False
        previous = parts
        seen.add(folders)
    return _all_seen(columns, seen)


def _all_seen(columns: ImageColumns, seen: set[tuple[str, ...]]) -> bool:
    """Whether the folders tell splits and classes as the columns do."""
    if columns.split is not None:
        names = _names(columns.split)
        found = {folders[0] for folders in seen if folders}
        classes = () if columns.label is None else _names(columns.label)
        if len(names) < 2 or split_names(found) != names or any(map(is_split_name, classes)):
            return False
    # A class without any image is kept by classes.txt, which counts once one of its names is found.
    depth = 1 + (columns.split is not None)
    return columns.label is None or any(len(folders) == depth for folders in seen)
