"""Which images are in a folder, in which order, and is each one whole?

The walk honours `.tensorrepoignore`, leaves out hidden files and does not follow links to folders.
Its order is that of paths compared part by part, so that two walks meet the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from tensorrepo.formats.exchange.base import damage, refusals
from tensorrepo.formats.exchange.ignore import Ignore
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, SUFFIXES, codec_of, examine
from tensorrepo.repo.errors import InvalidInputError

CLASSES_FILE = "classes.txt"
_SUFFIXES = frozenset(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
_ADVICE = "Mend or remove it, or skip such images: damaged=skip"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image file: `relative` to the folder, with slashes, and as the system calls it."""

    relative: str
    path: str
    bytes: int
    codec: str

    @property
    def folders(self) -> tuple[str, ...]:
        return folders_of(self.relative)


def folders_of(relative: str) -> tuple[str, ...]:
    return tuple(relative.split("/")[:-1])


@dataclass(slots=True)
class Place:
    """What one folder holds itself, without the folders in it."""

    rows: int = 0
    bytes: int = 0
    codecs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a first walk over a folder finds: folders with images, and what is passed over.

    `damaged` says of such images what is wrong with them.
    """

    places: Mapping[tuple[str, ...], Place]
    passed_over: tuple[str, ...]
    damaged: Mapping[str, str]


def survey_folder(path: Path, ignore: Ignore, *, examined: bool) -> Survey:
    """Count the images of every folder; with `examined` read each one to find damaged ones."""
    places: dict[tuple[str, ...], Place] = {}
    passed_over: list[str] = []
    damaged: dict[str, str] = {}
    for image in walk_images(path, ignore, passed_over, examined=examined):
        if examined and (problem := _problem(image)):
            damaged[image.relative] = problem
            continue
        place = places.setdefault(image.folders, Place())
        place.rows += 1
        place.bytes += image.bytes
        place.codecs.add(image.codec)
    return Survey(places, tuple(passed_over), damaged)


def walk_images(
    path: Path, ignore: Ignore, passed_over: list[str], *, examined: bool
) -> Iterator[ImageFile]:
    """Every image below `path` in the order of paths; what else there is goes to `passed_over`.

    Unless damaged images are `examined` and passed over, a file that is only called like an image
    is an error: most likely it was cut short before its first byte.
    """
    for relative, entry in walk_files(path, ignore, passed_over):
        with refusals(entry.path, "image"):
            codec = codec_of(read_head(entry.path)) if entry.is_file() else None
            if codec is None and not examined and is_called_image(relative):
                raise damage(entry.path, f"is called like an image and is none. {_ADVICE}")
            if codec is None:
                passed_over.append(f"{relative} is no image")
                continue
            stored = entry.stat().st_size
        yield ImageFile(unicode_name(path, relative), entry.path, stored, codec)


def walk_files(
    path: Path, ignore: Ignore, passed_over: list[str]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What may be images below `path`, folder after folder, names in order.

    Links to folders could be circles. Only one folder's names are in memory for each level, so a
    walk over millions stays small.
    """
    stack = [_entries(str(path))]
    parents = [""]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            parents.pop()
            continue
        relative = parents[-1] + entry.name
        is_folder = entry.is_dir()
        if entry.name.startswith(".") or ignore.leaves_out(relative, is_folder=is_folder):
            continue
        if not is_folder:
            if relative != CLASSES_FILE:
                yield relative, entry
        elif entry.is_symlink():
            passed_over.append(f"{relative} is a link to a folder, which is not followed")
        else:
            stack.append(_entries(entry.path))
            parents.append(f"{relative}/")


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with refusals(folder, "folder"), os.scandir(folder) as entries:
        return iter(sorted(entries, key=lambda entry: entry.name))


def is_called_image(name: str) -> bool:
    return PurePath(name).suffix.lower() in _SUFFIXES


def read_head(path: str) -> bytes:
    # No file object: in a folder of small images making one would cost more than reading it.
    with refusals(path, "image"):
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, HEAD_BYTES)
        finally:
            os.close(file)


def unicode_name(path: Path, relative: str) -> str:
    try:
        relative.encode()
    except UnicodeEncodeError as problem:
        raise damage(
            path, f"holds a file whose name is not UTF-8: {os.fsencode(relative)!r}. Rename it."
        ) from problem
    return relative


def read_whole(image: ImageFile) -> bytes:
    """The bytes of one image file.

    Raises:
        InvalidInputError: it is cut short, or is no longer in the format that it was found in.
    """
    with refusals(image.path, "image"):
        data = Path(image.path).read_bytes()
    check_whole(image.path, data, (image.codec,))
    return data


def check_whole(path: str, data: bytes, codecs: Collection[str]) -> str:
    """The format of an image file that was read, one of `codecs`.

    Raises:
        InvalidInputError: it is cut short, or in none of these formats any more.
    """
    try:
        codec = examine(data).codec
    except InvalidInputError as problem:
        raise damage(path, f"{problem}. {_ADVICE}") from problem
    if codec not in codecs:
        found = " or ".join(sorted(codecs))
        raise damage(path, f"was {found} and became {codec} while it was being read")
    return codec


def _problem(image: ImageFile) -> str:
    with refusals(image.path, "image"):
        data = Path(image.path).read_bytes()
    try:
        examine(data)
    except InvalidInputError as problem:
        return str(problem)
    return ""
