"""Writers of images with objects: COCO annotations, and YOLO's text files.

    annotations/instances.json images/a.png                    COCO; a file for each split
    data.yaml images/train/a.png labels/train/a.txt            YOLO

Both take what both readers give: an image, `boxes`, and the classes as `categories` (numbers) or
`names`. COCO's boxes are x, y, width and height in pixels, YOLO's the centre and the sizes in parts
of the picture; they are converted by the size that the image's header says.

Nothing but the list of classes is held in memory: of COCO, annotations wait in a file until the
list of images is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.convert import present
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.output import ExportTable, column_refused, new_folder
from tensorrepo.formats.images.headers import HEAD_BYTES, SUFFIXES, codec_of, header_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

PIXELS, PARTS = "pixels", "parts"
_NUMBERS: Final = (Scalar, Text)
# What columns are called, by the part that they play, and what types they may have.
_ROLES: Final[dict[str, tuple[type, ...]]] = {
    "file": (Text,),
    "image_id": _NUMBERS,
    "width": (Scalar,),
    "height": (Scalar,),
    "boxes": (Tensor,),
    "categories": (Tensor,),
    "names": (Json,),
    "iscrowd": (Tensor,),
    "area": (Tensor,),
    "segmentation": (Json,),
    "keypoints": (Tensor,),
    "captions": (Json,),
    "split": (ClassLabel,),
}
_YOLO_FOLDERS: Final = ("images", "labels")  # that tell a picture from its text
_ONLY_COCO: Final = frozenset({"iscrowd", "area", "keypoints", "captions", "image_id"})


@dataclass(frozen=True, slots=True)
class _Picture:
    """An image of a row, and where it goes: `file` relative to the folder of all images."""

    data: bytes
    file: str
    split: str
    size: tuple[int, int]  # width and height in pixels


@dataclass(slots=True)
class _Classes:
    """Names of classes by their number; those without one get the next that is free."""

    names: dict[int, str]
    facts: Sequence[Mapping[str, Any]] = ()
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, table: ExportTable) -> _Classes:
        told = table.properties.get("categories", [])
        facts = [fact for fact in told if isinstance(fact, dict) and {"id", "name"} <= fact.keys()]
        names = {int(fact["id"]): str(fact["name"]) for fact in facts}
        return cls(names, facts, {name: number for number, name in names.items()})

    def of_row(self, row: Mapping[str, Any], objects: int) -> list[int]:
        """The number of the class of each object of a row."""
        names = row.get("names")
        if row.get("categories") is None and names is None:
            return [self._number("object")] * objects
        if row.get("categories") is None:
            return [self._number(str(name)) for name in names or ()]
        numbers = [int(number) for number in row["categories"]]
        for at, number in enumerate(numbers):
            self.names.setdefault(number, str(names[at]) if names else str(number))
        return numbers

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = max(self.names, default=-1) + 1
            self.names[self.numbers[name]] = name
        return self.numbers[name]


def write_coco(
    table: ExportTable, path: Path, *, overwrite: bool = False, boxes: str | None = None
) -> None:
    """A folder of images with COCO annotations.

    Args:
        table: has a column of images; `file`, `image_id`, `boxes`, `categories`, `names`,
            `iscrowd`, `area`, `segmentation`, `keypoints`, `captions` and `split` as far as there
            are any.
        path: what to make.
        overwrite: replace what is there.
        boxes: what boxes hold: "pixels" as COCO's or "parts" as YOLO's; None: pixels where there is
            `image_id`, which the reader of COCO makes, else parts.

    Raises:
        InvalidInputError: a column or a row that COCO has no place for.
    """
    image = _image_column(table.schema, frozenset())
    unit = _unit(table.schema, boxes)
    classes = _Classes.of(table)
    with (
        new_folder(path, overwrite=overwrite) as folder,
        closing(_CocoFiles(folder, classes)) as files,
    ):
        for number, row in enumerate(_rows(table)):
            picture = _picture(table.schema, image, row, number)
            _put(folder / "images" / picture.file, picture.data, number)
            boxes_px = _boxes(row, number, unit, PIXELS, picture.size)
            files.add(picture, row, number, boxes_px, unit)
        files.finish()


def write_yolo(
    table: ExportTable, path: Path, *, overwrite: bool = False, boxes: str | None = None
) -> None:
    """A folder of images with YOLO's text files, and data.yaml with the names of classes.

    Args:
        table: as for `write_coco`; outlines are written where `segmentation` has one of an object.
        path: what to make.
        overwrite: replace what is there.
        boxes: as for `write_coco`.

    Raises:
        InvalidInputError: a column or a row that YOLO has no place for.
    """
    image = _image_column(table.schema, _ONLY_COCO - {"image_id", "area", "iscrowd"})
    unit = _unit(table.schema, boxes)
    classes = _Classes.of(table)
    known = sorted(classes.names)
    order = {number: at for at, number in enumerate(known)}
    with new_folder(path, overwrite=overwrite) as folder:
        (folder / "images").mkdir()
        for number, row in enumerate(_rows(table)):
            picture = _picture(table.schema, image, row, number)
            inner = (part for part in Path(picture.file).parts if part not in _YOLO_FOLDERS)
            below = Path(picture.split, *(part for part in inner if part != picture.split))
            _put(folder / "images" / below, picture.data, number)
            found = _boxes(row, number, unit, PARTS, picture.size)
            numbers = classes.of_row(row, len(found))
            for each in numbers:
                order.setdefault(each, len(order))
            outlines = _outlines(row, unit, picture.size, len(found))
            lines = (
                " ".join(map(_short, (order[each], *(outline or box.tolist()))))
                for each, box, outline in zip(numbers, found, outlines, strict=True)
            )
            text = "".join(f"{line}\n" for line in lines).encode()
            _put((folder / "labels" / below).with_suffix(".txt"), text, number)
        _write_yaml(folder, [classes.names[each] for each in order])


def _rows(table: ExportTable) -> Iterator[dict[str, Any]]:
    columns = table.schema.visible.columns
    for batch in table.to_batches([column.name for column in columns], max_bytes=BATCH_BYTES):
        values = []
        for column, array in zip(columns, batch.columns, strict=True):
            found = from_arrow_array(column.type, array)
            if found is None:
                raise column_refused(column, "its values are not what its type says")
            values.append(present(column, found))
        for row in zip(*values, strict=True):
            held = (None if value is np.ma.masked else value for value in row)
            yield dict(zip((column.name for column in columns), held, strict=True))


def _image_column(schema: Schema, refused: frozenset[str]) -> Column:
    """The column of images; every other one must have a part to play."""
    images = [column for column in schema.visible.columns if isinstance(column.type, Image)]
    if len(images) != 1:
        raise InvalidInputError(
            f"objects are those of one column of images; there are {len(images)} of them in "
            f"{', '.join(schema.visible.names)}"
        )
    for column in schema.visible.columns:
        kinds = _ROLES.get(column.name, ())
        if column not in images and (column.name in refused or not isinstance(column.type, kinds)):
            raise column_refused(column, "there is no place for it beside images and objects")
    if not {"boxes", "captions"} & set(schema.names):
        raise InvalidInputError(
            "there are no objects: expected a column 'boxes', with 'categories' or 'names', or "
            "'captions'"
        )
    return images[0]


def _unit(schema: Schema, boxes: str | None) -> str:
    if boxes not in (None, PIXELS, PARTS):
        raise InvalidInputError(f"boxes is {PIXELS} or {PARTS}, got {boxes!r}")
    return boxes or (PIXELS if "image_id" in schema else PARTS)


def _picture(schema: Schema, image: Column, row: Mapping[str, Any], number: int) -> _Picture:
    data = row[image.name]
    header = None if data is None else header_of(data)
    if header is None:
        what = "null" if data is None else "no image whose header can be read"
        raise column_refused(image, f"row {number} is {what}")
    split = row.get("split")
    kind = schema.column("split").type if split is not None and "split" in schema else None
    name = kind.names[int(split)] if isinstance(kind, ClassLabel) and split is not None else ""
    return _Picture(data, _file(row, data, number), name, (header.width, header.height))


def _file(row: Mapping[str, Any], data: bytes, number: int) -> str:
    named = row.get("file")
    if named is None:
        codec = codec_of(data[:HEAD_BYTES])
        return f"{number:012d}{SUFFIXES[codec][0] if codec else '.bin'}"
    parts = str(named).split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise InvalidInputError(f"row {number}, column 'file': {named!r} is no path in a folder")
    return str(named)


def _boxes(
    row: Mapping[str, Any], number: int, unit: str, wanted: str, size: tuple[int, int]
) -> NDArray[np.float32]:
    """The boxes of a row in the form that is wanted, ``(objects, 4)``."""
    given = row.get("boxes")
    found: NDArray[np.float32] = np.asarray([] if given is None else given, np.float32)
    found = found.reshape(-1, 4)
    if unit == PARTS and found.size and float(np.abs(found).max()) > 2:
        raise InvalidInputError(
            f"row {number}, column 'boxes': {float(found.max()):g} is no part of a picture. If "
            "boxes hold pixels, say so: boxes=pixels"
        )
    if unit == wanted:
        return found
    scale = np.array([*size, *size], np.float64)
    corner, extent = found[:, :2].astype(np.float64), found[:, 2:].astype(np.float64)
    if wanted == PIXELS:
        corner = corner - extent / 2
        turned = np.concatenate([corner, extent], 1) * scale
    else:
        turned = np.concatenate([corner + extent / 2, extent], 1) / scale
    return turned.astype(np.float32)


def _put(target: Path, data: bytes, number: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("xb") as file:
            file.write(data)
    except FileExistsError as problem:
        raise InvalidInputError(
            f"row {number} is not the only one with the file name {target.name!r}. Leave column "
            "'file' out, then images are called by their numbers"
        ) from problem


def _short(number: float) -> str:
    """A number as short as it is the same as float32."""
    return str(number) if isinstance(number, int) else repr(float(str(np.float32(number))))


class _JsonList:
    """A list of JSON that is written value by value."""

    def __init__(self, path: Path, begin: bytes = b"") -> None:
        self.file: IO[bytes] = path.open("x+b")
        self.file.write(begin)
        self._begun = False

    def append(self, value: Mapping[str, Any]) -> None:
        self.file.write((b",\n" if self._begun else b"\n") + msgspec.json.encode(value))
        self._begun = True


class _CocoFiles:
    """The annotation file of each split; its annotations wait in a file of their own."""

    def __init__(self, folder: Path, classes: _Classes) -> None:
        self._folder = folder / "annotations"
        self._folder.mkdir()
        self._classes = classes
        self._opened: dict[str, tuple[_JsonList, _JsonList]] = {}
        self._next = 1

    def add(
        self,
        picture: _Picture,
        row: Mapping[str, Any],
        number: int,
        boxes: NDArray[np.float32],
        unit: str,
    ) -> None:
        images, waiting = self._files(picture.split)
        told = row.get("image_id")
        image_id = number + 1 if told is None else told if isinstance(told, str) else int(told)
        width, height = picture.size
        form = {"id": image_id, "file_name": picture.file, "width": width, "height": height}
        images.append(form)
        for each in self._objects(row, boxes, unit, picture.size):
            waiting.append({"id": self._next, "image_id": image_id, **each})
            self._next += 1

    def finish(self) -> None:
        names = self._classes.names
        known = {int(fact["id"]): dict(fact) for fact in self._classes.facts}
        categories = [known.get(at) or {"id": at, "name": names[at]} for at in sorted(names)]
        for images, waiting in self._opened.values():
            images.file.write(b'\n],\n"annotations": [')
            waiting.file.seek(0)
            shutil.copyfileobj(waiting.file, images.file)
            images.file.write(b'\n],\n"categories": ' + msgspec.json.encode(categories) + b"\n}")
        self.close()
        for part in self._folder.glob("*.part"):
            part.unlink()

    def close(self) -> None:
        for images, waiting in self._opened.values():
            images.file.close()
            waiting.file.close()

    def _files(self, split: str) -> tuple[_JsonList, _JsonList]:
        if split not in self._opened:
            name = f"instances_{split}" if split else "instances"
            images = _JsonList(self._folder / f"{name}.json", b'{\n"images": [')
            self._opened[split] = images, _JsonList(self._folder / f"{name}.part")
        return self._opened[split]

    def _objects(
        self,
        row: Mapping[str, Any],
        boxes: NDArray[np.float32],
        unit: str,
        size: tuple[int, int],
    ) -> Iterator[dict[str, Any]]:
        numbers = self._classes.of_row(row, len(boxes))
        for at, (category, box) in enumerate(zip(numbers, boxes, strict=True)):
            sides = [float(str(side)) for side in box]
            form = {
                "category_id": category,
                "bbox": sides,
                "area": _at(row, "area", at, sides[2] * sides[3]),
                "iscrowd": int(_at(row, "iscrowd", at, 0)),
                "segmentation": _polygons(_at(row, "segmentation", at, []), unit, size),
            }
            points = _at(row, "keypoints", at, None)
            if points is not None:
                form["keypoints"] = [float(str(value)) for value in np.asarray(points).reshape(-1)]
                form["num_keypoints"] = int((np.asarray(points)[:, 2] > 0).sum())
            yield form
        for caption in row.get("captions") or ():
            yield {"caption": caption}


def _at(row: Mapping[str, Any], name: str, at: int, default: Any) -> Any:
    values = row.get(name)
    found = default if values is None else values[at]
    if isinstance(found, np.floating):
        return float(str(found))  # as short as it is the same as float32
    return found.item() if isinstance(found, np.generic) else found


def _polygons(outline: Any, unit: str, size: tuple[int, int]) -> Any:
    """COCO's form of an outline: those of YOLO are one polygon in parts of the picture."""
    if unit == PIXELS or not outline:
        return outline or []
    scale = np.tile(np.array(size, np.float64), len(outline) // 2)
    return [(np.array(outline) * scale).tolist()]


def _outlines(
    row: Mapping[str, Any], unit: str, size: tuple[int, int], objects: int
) -> list[list[float] | None]:
    """Outlines as YOLO's: of COCO's those of a single polygon, the others are boxes."""
    told = row.get("segmentation") or [None] * objects
    if unit == PARTS:
        return list(told)
    scale = np.array(size, np.float64)
    return [
        (np.array(each[0]).reshape(-1, 2) / scale).reshape(-1).tolist()
        if isinstance(each, list) and len(each) == 1 and len(each[0]) >= 6
        else None
        for each in told
    ]


def _write_yaml(folder: Path, names: Sequence[str]) -> None:
    """YAML by way of JSON, which is YAML as well."""
    splits = sorted(each.name for each in (folder / "images").iterdir() if each.is_dir())
    named = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
    places = {named[each]: f"images/{each}" for each in splits if each in named}
    lines = {"path": ".", **(places or {"train": "images", "val": "images"}), "names": list(names)}
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
    (folder / "data.yaml").write_text(text, "utf-8")
