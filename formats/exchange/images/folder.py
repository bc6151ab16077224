"""Image folders, one folder for each class: reader and writer.

    cat/1.png cat/2.png dog/7.png            columns image, label, file
    train/cat/1.png test/dog/7.png           and a column split
    1.png 2.png                              columns image, file

The class is the first folder (below a split's), or the last one with `labels="parent"`. Rows come
in the order of their paths, part by part. Images are told by content, checked to be whole and kept
as the bytes they are. `classes.txt` in the folder, a name a line, fixes the numbers of classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.coerce import EncodedImages, LastingBatch
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    ColumnBatch,
    Image,
    Schema,
    Text,
)
from tensorrepo.formats.dataset.schema.values import BinaryValues
from tensorrepo.formats.exchange.arrays.npy import join_names
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    Damage,
    Ignore,
    ImportOrigin,
    OpenedSource,
    read_ignore,
    shorten_notes,
    split_note,
)
from tensorrepo.formats.exchange.images.labels import (
    LabelTable,
    find_labels,
    open_labels,
    read_labelled,
)
from tensorrepo.formats.exchange.images.walk import (
    CLASSES_FILE,
    FolderSurvey,
    ImagePlace,
    Portion,
    WantedFile,
    folders_of,
    is_called_image,
    read_ahead,
    read_head,
    survey_folder,
    unicode_name,
    walk_files,
)
from tensorrepo.formats.exchange.output import ExportTable, column_refused, new_folder
from tensorrepo.formats.images.headers import HEAD_BYTES, SUFFIXES, codec_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})
_UNSAFE = frozenset('/\\:*?"<>|%\x7f')
_SNIFFED = 16  # files of a folder without known suffixes that are looked into


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """How folders become columns. `numbers` maps the folder that names a class to its number."""

    splits: tuple[str, ...]
    names: tuple[str, ...]
    numbers: Mapping[str, int]
    labels: str

    def split(self, folders: tuple[str, ...]) -> int | None:
        return self.splits.index(folders[0]) if self.splits else None

    def label(self, folders: tuple[str, ...]) -> int | None:
        """The number of the class of an image in `folders`; None for one in no class."""
        inner = folders[1:] if self.splits else folders
        if not inner or self.labels == "none":
            return None
        return self.numbers[inner[-1] if self.labels == "parent" else inner[0]]


def read_images(
    path: Path,
    *,
    split: str | None = None,
    labels: str | None = None,
    file_column: str | None = None,
    missing: bool = False,
    damaged: bool = False,
) -> OpenedSource:
    """A folder of images as columns `image`, `label`, `split` and `file`, as far as there are any.

    Args:
        path: the folder. Its `.tensorrepoignore` is honoured; hidden files are left out.
        split: only the images in this top folder; class numbers stay those of the whole.
        labels: "folder" (the first one names the class), "parent" (the last one), "none", or the
            name of a table in the folder; None: the only such table, else "folder".
        file_column: the column of that table that names the files.
        missing: leave out rows of the table without a file, and files without a row.
        damaged: leave out images that are cut short and note them, else the first is an error.

    Raises:
        InvalidInputError: no images, an image cut short, a file name that is not unicode, a row
            of a table without its file, or a file without a row.
    """
    if not path.is_dir():
        raise damage(path, "is not a folder; images are read from a folder with one for each class")
    ignore = read_ignore(path)
    table = _label_table(path, labels, file_column, split)
    if table is not None:
        return read_labelled(path, table, ignore, missing=missing, met=Damage(skip=damaged))
    return _read_folders(path, ignore, split, labels or "folder", examined=damaged)


def _label_table(
    path: Path, labels: str | None, file_column: str | None, split: str | None
) -> LabelTable | None:
    """The table that gives the labels, or None where folders do."""
    if labels in ("folder", "parent", "none") or (split is not None and labels is None):
        return None
    if labels is None:
        return find_labels(path, file_column)
    if "." not in labels:
        raise InvalidInputError(f"labels is folder, parent, none or a file, got {labels!r}")
    if split is not None:
        raise InvalidInputError("split is of folders; a table of labels has columns instead")
    return open_labels(path, labels, file_column)


def _read_folders(
    path: Path, ignore: Ignore, split: str | None, labels: str, *, examined: bool
) -> OpenedSource:
    survey = survey_folder(path, ignore, examined=examined)
    plan = make_plan(set(survey.places), read_classes(path), labels)
    places = _places_of(path, survey, plan, split)
    rows = sum(place.rows for place in places.values())
    return OpenedSource(
        schema=_schema(plan, places, one_split=split is not None),
        rows=rows,
        batches=_batches(path, ignore, survey.damaged, plan, places, one_split=split is not None),
        origin=ImportOrigin(
            str(path), "images", rows, sum(place.bytes for place in places.values())
        ),
        notes=shorten_notes(_notes(survey, places, plan, split)),
        damage=_met(survey, skip=examined),
        key=("file",),
    )


def _met(survey: FolderSurvey, *, skip: bool) -> Damage:
    """The images that the survey found damaged."""
    met = Damage(skip=skip)
    for relative, problem in survey.damaged.items():
        met.meet(relative, None, InvalidInputError(f"{relative} {problem}"))
    return met


def make_plan(
    places: AbstractSet[tuple[str, ...]], listed: Sequence[str], labels: str
) -> FolderPlan:
    """What the folders that hold images mean.

    Top folders are splits when all of them are called like one and `listed`, the names in
    `classes.txt`, does not say that they are classes.
    """
    tops = sorted({folders[0] for folders in places if folders})
    known = {class_folder(name): name for name in listed}
    splits = tuple(tops) if places and () not in places and SPLITS.issuperset(tops) else ()
    if known.keys() & set(splits):
        splits = ()
    inner = [folders[1:] if splits else folders for folders in places]
    at = -1 if labels == "parent" else 0
    found = sorted({folders[at] for folders in inner if folders}) if labels != "none" else []
    names = list(listed) if known.keys() & set(found) else []
    numbers = {class_folder(name): number for number, name in enumerate(names)}
    for folder in found:
        if folder not in numbers:
            numbers[folder] = len(names)
            names.append(folder)
    return FolderPlan(split_names(splits), tuple(names), numbers, labels)


def class_folder(name: str) -> str:
    """The folder for a class: its name, with what no folder may be called percent-encoded."""
    encoded = "".join(f"%{ord(c):02X}" if c in _UNSAFE or ord(c) < 32 else c for c in name)
    if encoded.startswith(".") or not encoded:
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}" if encoded else "%"
    return encoded


def split_names(folders: Iterable[str]) -> tuple[str, ...]:
    """Split folders in the order of their numbers: what is for training first."""
    return tuple(sorted(folders, key=lambda name: ("train" not in name, name)))


def matches_images(candidate: Candidate) -> bool:
    """A folder with a file called like an image, or with one that begins like an image."""
    if not candidate.is_folder:
        return False
    if any(is_called_image(name.name) for name in candidate.names):
        return True
    files = (candidate.path / name for name in candidate.names[:_SNIFFED])
    return any(map(_begins_as_image, files))


def _begins_as_image(file: Path) -> bool:
    try:
        return codec_of(read_head(str(file))) is not None
    except PermissionDenied:  # the reader of what is beside it says so, or passes it over
        return False


def is_image(candidate: Candidate) -> bool:
    """Whether a single file is an image: then its folder is what should be read."""
    return not candidate.is_folder and codec_of(candidate.head) is not None


def read_classes(path: Path) -> tuple[str, ...]:
    """The names in `classes.txt` of a folder, in its order; none without that file."""
    listing = path / CLASSES_FILE
    if not listing.is_file():
        return ()
    with refusals(listing, "list of classes", UnicodeDecodeError):
        return tuple(listing.read_text("utf-8").splitlines())


def _places_of(
    path: Path, survey: FolderSurvey, plan: FolderPlan, split: str | None
) -> dict[tuple[str, ...], ImagePlace]:
    """The folders to read: all, or those of one split."""
    if not survey.places:
        raise damage(path, "holds no images (PNG, JPEG, GIF, BMP, TIFF or WebP)")
    if split is None:
        return dict(survey.places)
    if split not in plan.splits:
        there = ", ".join(map(repr, plan.splits)) or "none"
        raise damage(path, f"holds no split {split!r}; there are {there}")
    return {folders: place for folders, place in survey.places.items() if folders[0] == split}


def _schema(
    plan: FolderPlan, places: Mapping[tuple[str, ...], ImagePlace], *, one_split: bool
) -> Schema:
    codecs = set().union(*(place.codecs for place in places.values()))
    columns = [Column("image", Image(codecs.pop() if len(codecs) == 1 else None))]
    labelled = [plan.label(folders) is not None for folders in places]
    if any(labelled):
        columns.append(Column("label", ClassLabel(plan.names), nullable=not all(labelled)))
    if len(plan.splits) > 1 and not one_split:
        columns.append(Column("split", ClassLabel(plan.splits)))
    return Schema((*columns, Column("file", Text())))


def _batches(
    path: Path,
    ignore: Ignore,
    damaged: Mapping[str, str],
    plan: FolderPlan,
    places: Mapping[tuple[str, ...], ImagePlace],
    *,
    one_split: bool,
) -> Iterator[ColumnBatch]:
    names = _schema(plan, places, one_split=one_split).names
    numbers = {each: (plan.label(each), plan.split(each)) for each in places}
    for portion in read_ahead(_wanted(path, ignore, damaged, places)):
        yield _batch(portion, names, numbers)


def _batch(
    portion: Portion,
    names: Sequence[str],
    numbers: Mapping[tuple[str, ...], tuple[int | None, int | None]],
) -> ColumnBatch:
    """Columns of these names; `numbers` are class and split of a folder."""
    images = BinaryValues(np.array([0, *portion.ends], np.int64), portion.data)
    found = [numbers[file.place.folders] for file in portion.files]
    columns = {
        "image": EncodedImages(images, portion.headers),
        "label": [label for label, _ in found],
        "split": [split for _, split in found],
        "file": [file.relative for file in portion.files],
    }
    return LastingBatch({name: columns[name] for name in names})


def _wanted(
    path: Path,
    ignore: Ignore,
    damaged: Mapping[str, str],
    places: Mapping[tuple[str, ...], ImagePlace],
) -> Iterator[list[WantedFile]]:
    """The files that the survey found in `places`, and what else lies there."""
    for run in walk_files(path, ignore):
        place = places.get(folders_of(run.folder))
        if place is not None:
            yield [
                WantedFile(unicode_name(path, relative), entry.path, place)
                for entry in run.entries
                if (relative := run.folder + entry.name) not in damaged and entry.is_file()
            ]


def _notes(
    survey: FolderSurvey,
    places: Mapping[tuple[str, ...], ImagePlace],
    plan: FolderPlan,
    split: str | None,
) -> list[str]:
    notes = [f"passed over: {item}" for item in survey.passed_over]
    if len(plan.splits) > 1 and split is None:
        rows = {
            name: sum(place.rows for folders, place in places.items() if folders[0] == name)
            for name in plan.splits
        }
        notes.insert(0, split_note(rows, "images"))
    return notes


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


def write_images(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
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


def reads_back(table: ExportTable) -> bool:
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
    if split is not None and not SPLITS.issuperset(_names(split)):
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


def _rows(table: ExportTable, names: tuple[str, ...] | list[str]) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(list(names), max_bytes=BATCH_BYTES):
        lists = [batch.column(name).to_pylist() for name in names]
        for values in zip(*lists, strict=True):
            yield dict(zip(names, values, strict=True))


def _place(columns: ImageColumns, row: dict[str, Any], number: int) -> str:
    """Where the image of a row goes, relative to the folder."""
    data = row[columns.image.name]
    if data is None:
        raise column_refused(columns.image, f"row {number} is null, and a folder holds files")
    codec = codec_of(data[:HEAD_BYTES])
    suffix = SUFFIXES[codec][0] if codec else f".{columns.codec or 'bin'}"
    return image_path(columns, row, number, suffix)


def image_path(columns: ImageColumns, row: Mapping[str, Any], number: int, suffix: str) -> str:
    """Where the image of a row goes, relative to the folder.

    Args:
        columns: which columns say what.
        row: the row's values of the light ones.
        number: number of the row, which is its name where no column says one.
        suffix: suffix of that name.

    Raises:
        InvalidInputError: its `file` is no path inside a folder.
    """
    folders = _folders(columns, row)
    file = row[columns.file.name] if columns.file is not None else None
    if file is None:
        return "/".join((*folders, f"{number:08d}{suffix}"))
    parts = file.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise InvalidInputError(
            f"row {number}, column 'file': {file!r} is no path inside a folder. Leave the column "
            "out, then rows are called by their numbers"
        )
    return file if tuple(parts[: len(folders)]) == folders else "/".join((*folders, file))


def _folders(columns: ImageColumns, row: Mapping[str, Any]) -> tuple[str, ...]:
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
        if len(names) < 2 or split_names(found) != names or not SPLITS.isdisjoint(classes):
            return False
    # A class without any image is kept by classes.txt, which counts once one of its names is found.
    depth = 1 + (columns.split is not None)
    return columns.label is None or any(len(folders) == depth for folders in seen)
