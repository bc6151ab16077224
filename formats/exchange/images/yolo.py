"""YOLO labels: a text file of boxes or outlines for each image.

    images/train/1.jpg labels/train/1.txt data.yaml
    train/images/1.jpg train/labels/1.txt data.yaml
    1.jpg 1.txt classes.txt

A line is ``class cx cy w h`` (a box: its centre and sizes) or ``class x1 y1 x2 y2 ...`` (an
outline), all in parts of the picture's width and height. An image without a text file has no
objects. Names of classes come from data.yaml, classes.txt or obj.names.

Source:
    The pages "Object Detection" and "Instance Segmentation" of the guide to data sets of
    Ultralytics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import first_names
from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
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
    read_ignore,
)
from tensorrepo.formats.exchange.images.labels import (
    MISSING_ADVICE,
    image_batches,
    image_column,
    read_text,
)
from tensorrepo.formats.exchange.images.walk import (
    CLASSES_FILE,
    ImageFile,
    is_called_image,
    walk_images,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

YAML_FILES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
NAME_FILES = (CLASSES_FILE, "obj.names", "labels/classes.txt")
SPLITS = ("train", "training", "val", "valid", "validation", "test", "testing")
_MAX_TEXT_BYTES = 16 << 20
_MAX_YAML_BYTES = 1 << 20  # PyYAML reads a few hundred KiB a second
_OBJECT_BYTES = 512
_LOOKED_INTO = 200  # label files that are read to tell boxes from outlines


@dataclass(frozen=True, slots=True)
class _Objects:
    """What one text file says; `outlines` has None for an object given as a box."""

    categories: NDArray[np.int64]
    boxes: NDArray[np.float32]
    outlines: list[list[float] | None]


@dataclass(frozen=True, slots=True)
class _Plan:
    root: Path
    names: tuple[str, ...]
    splits: tuple[str, ...]
    outlines: bool


def read_yolo(
    path: Path,
    *,
    split: str | None = None,
    task: str | None = None,
    missing: bool = False,
    damaged: bool = False,
) -> OpenedSource:
    """Images with the boxes, and with task "segment" the outlines, of their text files.

    Args:
        path: the folder, or the data.yaml in it.
        split: only images in folders of this name.
        task: "detect" makes boxes of outlines too; None: told by the first files.
        missing: leave out text files without an image, else they are an error.
        damaged: leave out images that are cut short or whose text file cannot be read.

    Raises:
        InvalidInputError: no images, a line that is no box and no outline, a class without name.
    """
    if task not in (None, "detect", "segment"):
        raise InvalidInputError(f"task is detect or segment, got {task!r}")
    root = path if path.is_dir() else path.parent
    names = _class_names(root, path)
    images = _images(root, split)
    splits = tuple(name for name in SPLITS if any(_split(image) == name for image in images))
    notes = _check_labels(root, images, split, skip=missing)
    outlines = _has_outlines(root, images) if task is None else task == "segment"
    plan = _Plan(root, names, splits if split is None and len(splits) > 1 else (), outlines)
    met = Damage(skip=damaged)
    schema = _schema(plan, images)
    return OpenedSource(
        schema=schema,
        rows=None if damaged else len(images),
        batches=_batches(plan, images, schema, met),
        origin=ImportOrigin(str(path), "yolo", len(images), sum(image.bytes for image in images)),
        notes=tuple(notes),
        damage=met,
        properties={"categories": [{"id": at, "name": name} for at, name in enumerate(names)]},
    )


def matches_yolo(candidate: Candidate) -> bool:
    """A folder with an image and a text file that lies where that image's labels do."""
    if not candidate.is_folder:
        return candidate.path.name in YAML_FILES
    images = (name for name in candidate.names if is_called_image(name.name))
    return any(
        (file := candidate.path / _label_name(name.as_posix())).is_file() and _is_label(file)
        for name in islice(images, _LOOKED_INTO)
    )


def _is_label(file: Path) -> bool:
    """Whether a text file begins with a line of numbers, the first a class."""
    try:
        with file.open("rb") as text:
            _parse_line(text.readline(4096).decode("ascii").split())
    except (ValueError, OSError):
        return False
    return True


def _label_name(image: str) -> str:
    """Where the labels of an image lie: the last folder ``images`` is ``labels`` there."""
    parts = list(PurePosixPath(image).with_suffix(".txt").parts)
    at = max((at for at, part in enumerate(parts[:-1]) if part == "images"), default=None)
    if at is not None:
        parts[at] = "labels"
    return "/".join(parts)


def _split(image: ImageFile) -> str | None:
    return next((part for part in image.folders if part in SPLITS), None)


def _images(root: Path, split: str | None) -> list[ImageFile]:
    walked = walk_images(root, read_ignore(root), [], examined=True)
    images = [image for image in walked if split is None or split in image.folders]
    if not images:
        raise damage(root, f"holds no images{f' of split {split!r}' if split else ''}")
    return images


def _check_labels(
    root: Path, images: Sequence[ImageFile], split: str | None, *, skip: bool
) -> list[str]:
    """Notes about label files without an image, or an error about them."""
    expected = {_label_name(image.relative) for image in images}
    alone = []
    with refusals(root, "folder"):
        for file in sorted(root.rglob("*.txt")):
            relative = file.relative_to(root)
            folders = relative.parts[:-1]
            asked = "labels" in folders and (split is None or split in folders)
            if asked and file.name != CLASSES_FILE and relative.as_posix() not in expected:
                alone.append(relative.as_posix())
    if alone and not skip:
        raise damage(root, f"has no image for {first_names(alone)}. {MISSING_ADVICE}")
    return [f"labels without an image left out: {first_names(alone)}"] * bool(alone)


def _has_outlines(root: Path, images: Sequence[ImageFile]) -> bool:
    """Whether any of the first text files draws an outline."""
    for image in images[:_LOOKED_INTO]:
        file = root / _label_name(image.relative)
        if file.is_file() and any(read_objects(file).outlines):
            return True
    return False


def _schema(plan: _Plan, images: Sequence[ImageFile]) -> Schema:
    columns = [
        image_column(image.codec for image in images),
        Column("file", Text()),
        Column("width", Scalar("int64")),
        Column("height", Scalar("int64")),
        Column("boxes", Tensor("float32", (None, 4))),
        Column("categories", Tensor("int64", (None,))),
    ]
    if plan.names:
        columns.append(Column("names", Json()))
    if plan.outlines:
        columns.append(Column("segmentation", Json()))
    if plan.splits:
        columns.append(Column("split", ClassLabel(plan.splits), nullable=True))
    return Schema(tuple(columns))


def _batches(
    plan: _Plan, images: Sequence[ImageFile], schema: Schema, met: Damage
) -> Iterator[ColumnBatch]:
    def rows() -> Iterator[tuple[ImageFile, dict[str, Any], int]]:
        for number, image in enumerate(images):
            try:
                values = _row(plan, image)
                yield image, values, _OBJECT_BYTES * len(values["boxes"])
            except InvalidInputError as problem:
                met.meet(image.path, number, problem)

    return image_batches(rows(), schema.names, met)


def _row(plan: _Plan, image: ImageFile) -> dict[str, Any]:
    """All columns of one image but its bytes."""
    file = plan.root / _label_name(image.relative)
    found = read_objects(file) if file.is_file() else _objects([])
    if not plan.outlines and any(found.outlines) and not found.boxes.size:
        raise damage(file, "draws outlines; say task=segment")
    split = _split(image)
    return {
        "file": image.relative,
        "boxes": found.boxes,
        "categories": found.categories,
        "names": [_name(plan.names, number, file) for number in found.categories.tolist()],
        "segmentation": found.outlines,
        "split": None if split is None or not plan.splits else plan.splits.index(split),
    }


def _name(names: Sequence[str], number: int, file: Path) -> str:
    if names and number >= len(names):
        raise damage(file, f"class {number} has no name; there are {len(names)}")
    return names[number] if names else str(number)


# ------------------------------------------------------------------------------ text


def read_objects(file: Path) -> _Objects:
    """The objects of a text file. Raises InvalidInputError, which names a line that is none."""
    objects = []
    text = read_text(file, "list of objects", _MAX_TEXT_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                objects.append(_parse_line(line.split()))
            except ValueError as problem:
                raise damage(f"{file}, line {number}", f"{line[:60]!r}: {problem}") from problem
    return _objects(objects)


def _parse_line(words: Sequence[str]) -> tuple[int, list[float], list[float] | None]:
    """Class, box and outline of one line."""
    category, numbers = int(words[0]) if words else -1, [float(word) for word in words[1:]]
    if category < 0:
        raise ValueError("a line begins with the number of a class")
    if not np.isfinite(numbers).all():
        raise ValueError("a coordinate is no number")
    if len(numbers) == 4:
        return category, numbers, None
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError(
            f"expected a class and 4 numbers (a box), or 3 or more points; found {len(numbers)}"
        )
    left, right = min(numbers[::2]), max(numbers[::2])
    top, bottom = min(numbers[1::2]), max(numbers[1::2])
    box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    return category, box, numbers


def _objects(found: Sequence[tuple[int, list[float], list[float] | None]]) -> _Objects:
    return _Objects(
        np.array([category for category, _, _ in found], np.int64),
        np.array([box for _, box, _ in found], np.float32).reshape(-1, 4),
        [outline for _, _, outline in found],
    )


def _class_names(root: Path, path: Path) -> tuple[str, ...]:
    """The names of the classes, by number; none when nothing tells them."""
    listed = [path] if path.is_file() else [root / name for name in YAML_FILES]
    for file in listed:
        if file.is_file():
            return _yaml_names(file)
    for name in NAME_FILES:
        if (root / name).is_file():
            text = read_text(root / name, "list of classes", _MAX_TEXT_BYTES)
            return tuple(line.strip() for line in text.splitlines() if line.strip())
    return ()


def _yaml_names(file: Path) -> tuple[str, ...]:
    """Class names that a YAML file lists, or numbers from 0."""
    import yaml

    text = read_text(file, "YAML file", _MAX_YAML_BYTES)
    try:
        # Composed, not loaded: every scalar stays the text that it is, no tag is obeyed, and an
        # alias is never unfolded. A class may be called `no` or `1.0`.
        entries = _yaml_entries(yaml.compose(text, Loader=yaml.SafeLoader))
        if "kpt_shape" in entries:
            raise damage(file, "describes key points (kpt_shape), which are not read")
        names = entries.get("names")
        if isinstance(names, yaml.MappingNode):
            numbered = {int(key): _yaml_text(node) for key, node in _yaml_entries(names).items()}
            if sorted(numbered) != list(range(len(numbered))):
                raise damage(file, f"numbers its classes {sorted(numbered)}, expected 0, 1, 2, ...")
            return tuple(numbered[number] for number in range(len(numbered)))
        if names is not None and not isinstance(names, yaml.SequenceNode):
            raise damage(file, f"its names are {names.value!r:.60}, expected a list")
        return tuple(map(_yaml_text, names.value if names is not None else ()))
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        told = " ".join(str(problem).split())
        raise damage(file, f"cannot be read as YAML: {told}") from problem


def _yaml_entries(node: Any) -> dict[str, Any]:
    """Nodes of a mapping by their keys; PyYAML would keep the last of two equal ones silently."""
    import yaml

    entries: dict[str, Any] = {}
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise ValueError(f"line {node.start_mark.line + 1}: expected keys with values")
    for key, value in node.value if node is not None else ():
        text = _yaml_text(key)
        if text in entries:
            raise ValueError(f"line {key.start_mark.line + 1}: key {text!r} is there twice")
        entries[text] = value
    return entries


def _yaml_text(node: Any) -> str:
    text = node.value
    if isinstance(text, str):
        return text
    raise ValueError(f"line {node.start_mark.line + 1}: expected plain text")
