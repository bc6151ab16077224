"""COCO annotations: JSON beside a folder of images.

    annotations/instances_val2017.json annotations/captions_val2017.json val2017/000000000139.jpg

One row an image, in the order of the file's list. Boxes are COCO's: x and y of the upper left
corner, width, height, in pixels. Several files about the same images are joined by image id. Only
places of records are held in memory: 24 bytes an annotation.

Source:
    The page "Data format" of the COCO data set.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import first_names
from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnBatch,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import (
    Candidate,
    Damage,
    ImportOrigin,
    OpenedSource,
    file_bytes,
)
from tensorrepo.formats.exchange.images.labels import (
    MISSING_ADVICE,
    find_image,
    image_batches,
    image_column,
    name_key,
)
from tensorrepo.formats.exchange.images.walk import ImageFile
from tensorrepo.formats.exchange.json_records import JsonSpan, read_record, scan
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError, PermissionDenied

_HEAD_BYTES = 1 << 16
_MAX_LISTED = 64  # JSON files of a folder that are looked into
_INT64 = 1 << 63
_PYTHON_BYTES = 6  # that Python's numbers take for each byte of their text


class _Picture(msgspec.Struct):
    id: int | str
    file_name: str
    width: int | None = None
    height: int | None = None


class _Category(msgspec.Struct):
    id: int
    name: str
    supercategory: str | None = None
    keypoints: list[str] = []
    skeleton: list[list[int]] = []


class _Annotation(msgspec.Struct):
    image_id: int | str
    category_id: int | None = None
    bbox: tuple[float, float, float, float] | None = None
    area: float | None = None
    iscrowd: int | bool = 0
    segmentation: Any = None
    keypoints: list[float] | None = None
    caption: str | None = None


class _Sketch(msgspec.Struct):
    """What a first look at an annotation needs of it."""

    image_id: int | str
    category_id: int | None = None
    area: float | None = None
    segmentation: msgspec.Raw = msgspec.Raw(b"")
    keypoints: list[float] | None = None
    caption: str | None = None
    segments_info: msgspec.Raw = msgspec.Raw(b"")


@dataclass(slots=True)
class _Places:
    """Where the annotations of all files lie, and what they have."""

    images: array[int] = field(default_factory=lambda: array("q"))
    files: array[int] = field(default_factory=lambda: array("H"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    stops: array[int] = field(default_factory=lambda: array("q"))
    has: set[str] = field(default_factory=set)
    points: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Found:
    """The images of a reading, and for each where its annotations lie."""

    pictures: Sequence[_Picture]
    files: Mapping[int, ImageFile]
    categories: Mapping[int, _Category]
    order: NDArray[np.int64]
    bounds: NDArray[np.int64]
    places: _Places


def read_coco(
    path: Path,
    *,
    annotations: tuple[str, ...] = (),
    images: str | None = None,
    split: str | None = None,
    missing: bool = False,
    damaged: bool = False,
) -> OpenedSource:
    """Images with what COCO files say of them.

    Args:
        path: a folder with annotation files, or one annotation file.
        annotations: which files, relative to the folder; several are joined by image id.
        images: the folder that file names are relative to; else it is looked for.
        split: only annotation files with this in their names: "val2017".
        missing: leave out images without a file, else they are an error.
        damaged: leave out images that are cut short.

    Raises:
        InvalidInputError: no such annotations, annotations of an image that is not listed, an
            image whose file is missing, or files whose images differ.
    """
    files = _annotation_files(path, annotations, split)
    pictures, categories, places = _survey(files)
    folder = _image_folder(path, files[0], images, pictures)
    found_files, notes = _find_files(folder, pictures, skip=missing)
    found = _arrange(files[0], pictures, found_files, categories, places)
    met = Damage(skip=damaged)
    schema = _schema(found)
    facts = [
        {name: value for name, value in form.items() if value not in (None, [])}
        for form in map(msgspec.to_builtins, categories.values())
    ]
    return OpenedSource(
        schema=schema,
        rows=None if damaged else len(found_files),
        batches=_batches(files, found, schema, met),
        origin=ImportOrigin(
            str(path),
            "coco",
            len(files) + len(found_files),
            sum(map(file_bytes, files)) + sum(file.bytes for file in found_files.values()),
        ),
        notes=tuple(notes),
        damage=met,
        properties={"categories": facts},
    )


def matches_coco(candidate: Candidate) -> bool:
    """A folder of images with a JSON file that begins as COCO's do, or such a file."""
    if not candidate.is_folder:
        return candidate.path.suffix == ".json" and _is_coco(candidate.path)
    listed = [name for name in candidate.names if name.suffix == ".json"][:_MAX_LISTED]
    return any(_is_coco(candidate.path / name) for name in listed)


def _is_coco(path: Path) -> bool:
    try:
        with refusals(path, "JSON file"), path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except PermissionDenied:  # as for images: see `matches_images`
        return False
    listed = b'"images"' in head or b'"annotations"' in head or b'"categories"' in head
    of_images = b'"file_name"' in head or b'"image_id"' in head or b'"supercategory"' in head
    return head.lstrip()[:1] == b"{" and listed and of_images


def _annotation_files(path: Path, named: tuple[str, ...], split: str | None) -> list[Path]:
    """The annotation files to read: those named, or the only ones that there are."""
    if not path.is_dir():
        return [path]
    if named:
        for name in named:
            if not (path / name).is_file():
                raise NotFoundError(f"{path / name}: no such file")
        return [path / name for name in named]
    with refusals(path, "folder"):
        every = [file for file in sorted(path.rglob("*.json")) if file.is_file()]
    found = [file for file in every if (split or "") in file.stem and _is_coco(file)]
    if not found:
        raise damage(path, f"holds no COCO annotations{f' of split {split!r}' if split else ''}")
    if len({_split_of(file) for file in found}) > 1:
        names = first_names([str(file.relative_to(path)) for file in found], 4)
        raise damage(
            path, f"holds annotations of several sets: {names}. Say split=... or annotations=..."
        )
    return found


def _split_of(file: Path) -> str:
    """What an annotation file is about: "val2017" of ``instances_val2017.json``."""
    return file.stem.rpartition("_")[2] if "_" in file.stem.strip("_") else file.stem


def _survey(files: Sequence[Path]) -> tuple[list[_Picture], dict[int, _Category], _Places]:
    """A first walk: the images, the categories, and where each annotation lies."""
    pictures: list[_Picture] = []
    known: set[int] = set()
    categories: dict[int, _Category] = {}
    places = _Places()
    for number, path in enumerate(files):
        with refusals(path, "JSON file"), path.open("rb") as file:
            for span in scan(path):
                if span.key == "images":
                    picture = read_record(path, file, span, _Picture)
                    if _key(picture.id) not in known:
                        known.add(_key(picture.id))
                        pictures.append(picture)
                    elif not number:
                        raise damage(path, f"lists image {picture.id!r} twice")
                elif span.key == "categories":
                    category = read_record(path, file, span, _Category)
                    categories[category.id] = category
                elif span.key == "annotations":
                    _note(places, number, span, read_record(path, file, span, _Sketch), path)
    if not pictures:
        raise damage(files[0], "lists no images")
    return pictures, categories, places


def _note(places: _Places, number: int, span: JsonSpan, sketch: _Sketch, path: Path) -> None:
    if bytes(sketch.segments_info):
        raise damage(path, "is panoptic segmentation, which is not read. Use the instances file")
    places.images.append(_key(sketch.image_id))
    places.files.append(number)
    places.starts.append(span.start)
    places.stops.append(span.stop)
    if sketch.category_id is not None:
        places.has.add("boxes")
    if bytes(sketch.segmentation) not in (b"", b"null", b"[]"):
        places.has.add("segmentation")
    if sketch.area is not None:
        places.has.add("area")
    if sketch.caption is not None:
        places.has.add("captions")
    if sketch.keypoints is not None:
        places.points.add(len(sketch.keypoints))


def _key(image_id: int | str) -> int:
    """A 64-bit number that stands for an image id."""
    if isinstance(image_id, int) and -_INT64 <= image_id < _INT64:
        return image_id
    return name_key(str(image_id)) - _INT64


def _image_folder(
    path: Path, annotations: Path, named: str | None, pictures: Sequence[_Picture]
) -> Path:
    """The folder that file names are relative to: the one named, or where the first image lies."""
    base = path if path.is_dir() else annotations.parent
    if named is not None:
        return base / named
    split = _split_of(annotations)
    near = [annotations.parent, annotations.parent.parent]
    tried = [
        folder
        for start in dict.fromkeys((base, *near))
        for folder in (start, start / "images", start / split, start / "images" / split)
    ]
    tried += [start / "train" for start in near] + [start / "val" for start in near]
    for folder in tried:
        if any(find_image(folder, picture.file_name) for picture in pictures[:8]):
            return folder
    raise damage(
        annotations,
        f"its image {pictures[0].file_name!r} is not near by. Say where they are: images=FOLDER",
    )


def _find_files(
    folder: Path, pictures: Sequence[_Picture], *, skip: bool
) -> tuple[dict[int, ImageFile], list[str]]:
    """The file of each image by its place in the list, and notes about those without."""
    found: dict[int, ImageFile] = {}
    absent: list[str] = []
    for at, picture in enumerate(pictures):
        file = find_image(folder, picture.file_name)
        if file is not None:
            found[at] = file
        else:
            absent.append(picture.file_name)
    if absent and not skip:
        raise damage(folder, f"lacks {first_names(absent)}. {MISSING_ADVICE}")
    return found, [f"images without a file left out: {first_names(absent)}"] * bool(absent)


def _arrange(
    path: Path,
    pictures: Sequence[_Picture],
    files: Mapping[int, ImageFile],
    categories: Mapping[int, _Category],
    places: _Places,
) -> _Found:
    """Which annotations belong to which image: those of image i are ``order[bounds[i]]``."""
    owners = np.frombuffer(places.images, np.int64) if places.images else np.empty(0, np.int64)
    order = np.argsort(owners, kind="stable")
    keys = np.array([_key(picture.id) for picture in pictures], np.int64)
    strangers = owners[~np.isin(owners, keys)]
    if strangers.size:
        raise damage(
            path, f"annotates image {int(strangers[0])}, which is not in its list of images"
        )
    inside = owners[order]
    bounds = np.stack([np.searchsorted(inside, keys), np.searchsorted(inside, keys, "right")], 1)
    if len(places.points) > 1 or any(length % 3 for length in places.points):
        raise damage(path, f"has annotations with {sorted(places.points)} numbers of key points")
    return _Found(pictures, files, categories, order, bounds, places)


def _schema(found: _Found) -> Schema:
    has, points = found.places.has, found.places.points
    textual = any(isinstance(picture.id, str) for picture in found.pictures)
    columns = [
        image_column(file.codec for file in found.files.values()),
        Column("file", Text()),
        Column("image_id", Text() if textual else Scalar("int64")),
        Column("width", Scalar("int64"), nullable=True),
        Column("height", Scalar("int64"), nullable=True),
    ]
    if "boxes" in has:
        columns += [
            Column("boxes", Tensor("float32", (None, 4))),
            Column("categories", Tensor("int64", (None,))),
            Column("names", Json()),
            Column("iscrowd", Tensor("bool", (None,))),
        ]
    if "area" in has:
        columns.append(Column("area", Tensor("float32", (None,))))
    if "segmentation" in has:
        columns.append(Column("segmentation", Json()))
    if points:
        columns.append(Column("keypoints", Tensor("float32", (None, max(points) // 3, 3))))
    if "captions" in has:
        columns.append(Column("captions", Json()))
    return Schema(tuple(columns))


def _batches(
    files: Sequence[Path], found: _Found, schema: Schema, met: Damage
) -> Iterator[ColumnBatch]:
    with ExitStack() as stack:
        opened = [stack.enter_context(path.open("rb")) for path in files]
        rows = (
            (file, _row(found, at, files, opened, schema), _size(found, at))
            for at, file in found.files.items()
        )
        yield from image_batches(rows, schema.names, met)


def _size(found: _Found, at: int) -> int:
    """About how many bytes the annotations of an image take in memory."""
    first, stop = found.bounds[at].tolist()
    starts, stops = found.places.starts, found.places.stops
    indices: list[int] = found.order[first:stop].tolist()
    text = sum(stops[index] - starts[index] for index in indices)
    return _PYTHON_BYTES * text


def _row(
    found: _Found, at: int, files: Sequence[Path], opened: Sequence[IO[bytes]], schema: Schema
) -> dict[str, Any]:
    """All columns of one image but its bytes."""
    picture, places = found.pictures[at], found.places
    first, stop = found.bounds[at].tolist()
    notes = []
    for index in found.order[first:stop].tolist():
        number = places.files[index]
        span = JsonSpan("annotations", places.starts[index], places.stops[index])
        notes.append(read_record(files[number], opened[number], span, _Annotation))
    objects = [note for note in notes if note.category_id is not None]
    for note in objects:
        if note.bbox is None:
            raise damage(files[0], f"an annotation of image {picture.id!r} has no bbox")
    image_id = str(picture.id) if schema.column("image_id").type == Text() else picture.id
    return {
        "file": picture.file_name,
        "image_id": image_id,
        "width": picture.width,
        "height": picture.height,
        **_object_columns(found, objects, schema),
        "captions": [note.caption for note in notes if note.caption is not None],
    }


def _object_columns(
    found: _Found, objects: Sequence[_Annotation], schema: Schema
) -> dict[str, Any]:
    points = max(found.places.points, default=0)
    none = [0.0] * points
    known, numbers = found.categories, [n.category_id for n in objects if n.category_id is not None]
    return {
        "boxes": np.array([note.bbox for note in objects], np.float32).reshape(-1, 4),
        "categories": np.array(numbers, np.int64),
        "names": [known[n].name if n in known else str(n) for n in numbers],
        "iscrowd": np.array([bool(note.iscrowd) for note in objects], np.bool_),
        "area": np.array([note.area or 0.0 for note in objects], np.float32),
        "segmentation": [note.segmentation for note in objects],
        "keypoints": np.array([note.keypoints or none for note in objects], np.float32).reshape(
            -1, points // 3, 3
        )
        if "keypoints" in schema
        else None,
    }
