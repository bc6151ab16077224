"""Which images are in a folder, in which order, and is each one whole?

The walk honours `.tensorrepoignore`, leaves out hidden files and does not follow links to folders.
Its order is that of paths compared part by part, so that two walks meet the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from tensorrepo.formats.exchange.base import damage, refusals
from tensorrepo.formats.exchange.ignore import Ignore
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, SUFFIXES, codec_of, examine
from tensorrepo.formats.imagebytes import ImageHeader
from tensorrepo.repo.errors import InvalidInputError

CLASSES_FILE = "classes.txt"
_SUFFIXES = frozenset(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
RUN_FILES = 64
_name_of = attrgetter("name")
_ADVICE = "Mend or remove it, or skip such images: damaged=skip"


class ImageFile(NamedTuple):
    """One image file: `relative` to the folder, with slashes, and as the system calls it."""

    # A tuple, as there may be millions of them: see ImageHeader.
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

    folders: tuple[str, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Run:
    """Some files that follow each other in one folder: `folder` is "" or ends in a slash."""

    folder: str
    entries: Sequence[os.DirEntry[str]]


def survey_folder(path: Path, ignore: Ignore, *, examined: bool) -> Survey:
    """Count the images of every folder; with `examined` read each one to find damaged ones."""
    places: dict[tuple[str, ...], Place] = {}
    passed_over: list[str] = []
    damaged: dict[str, str] = {}
    for run in walk_files(path, ignore, passed_over):
        place: Place | None = None
        for image in _images_of(path, run, passed_over, examined=examined):
            if examined and (problem := _problem(image)):
                damaged[image.relative] = problem
                continue
            if place is None:
                folders = folders_of(run.folder)
                place = places.setdefault(folders, Place(folders))
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
    for run in walk_files(path, ignore, passed_over):
        yield from _images_of(path, run, passed_over, examined=examined)


def _images_of(
    path: Path, run: Run, passed_over: list[str], *, examined: bool
) -> Iterator[ImageFile]:
    for entry in run.entries:
        relative = run.folder + entry.name
        try:
            codec, stored = _look_into(entry)
        except OSError:
            with refusals(entry.path, "image"):
                raise
        if codec is None and not examined and is_called_image(relative):
            raise damage(entry.path, f"is called like an image and is none. {_ADVICE}")
        if codec is None:
            passed_over.append(f"{relative} is no image")
        else:
            yield ImageFile(unicode_name(path, relative), entry.path, stored, codec)


def _look_into(entry: os.DirEntry[str]) -> tuple[str | None, int]:
    """The format of an image file, None for others, and its size.

    One `open` and no `stat`: in a folder of small images, finding a file by its name costs more
    than reading it.
    """
    if not entry.is_file():
        return None, 0
    file = os.open(entry.path, os.O_RDONLY)
    try:
        return codec_of(os.read(file, HEAD_BYTES)), os.lseek(file, 0, os.SEEK_END)
    finally:
        os.close(file)


def walk_files(path: Path, ignore: Ignore, passed_over: list[str]) -> Iterator[Run]:
    """What may be images below `path`, folder after folder, names in order.

    Links to folders could be circles. Only one folder's names are in memory for each level, so a
    walk over millions stays small.
    """
    stack = [_Level.of("", str(path), ignore)]
    while stack:
        level = stack[-1]
        yield from level.files()
        below = level.enter()
        if below is None:
            stack.pop()
        elif below.is_symlink():
            passed_over.append(
                f"{level.folder}{below.name} is a link to a folder, which is not followed"
            )
        else:
            stack.append(_Level.of(f"{level.folder}{below.name}/", below.path, ignore))


@dataclass(slots=True)
class _Level:
    """A folder that is being walked: `at` is how far, `folders` where folders lie behind that."""

    folder: str
    entries: list[os.DirEntry[str]]
    folders: Iterator[int]
    at: int = 0

    @classmethod
    def of(cls, folder: str, path: str, ignore: Ignore) -> _Level:
        with refusals(path, "folder"), os.scandir(path) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
        entries.sort(key=_name_of)
        if ignore.rules:
            entries = [
                entry
                for entry in entries
                if not ignore.leaves_out(folder + entry.name, is_folder=entry.is_dir())
            ]
        if not folder:
            entries = [each for each in entries if each.name != CLASSES_FILE or each.is_dir()]
        return cls(folder, entries, iter([at for at, e in enumerate(entries) if e.is_dir()]))

    def files(self) -> Iterator[Run]:
        """The files up to the next folder, which is where `at` is then."""
        start, self.at = self.at, next(self.folders, len(self.entries))
        for first in range(start, self.at, RUN_FILES):
            yield Run(self.folder, self.entries[first : min(first + RUN_FILES, self.at)])

    def enter(self) -> os.DirEntry[str] | None:
        """The folder that is next; None when there is no more."""
        if self.at == len(self.entries):
            return None
        self.at += 1
        return self.entries[self.at - 1]


def is_called_image(name: str) -> bool:
    file = name.rpartition("/")[2]
    at = file.rfind(".")
    return at > 0 and file[at:].lower() in _SUFFIXES


def read_head(path: str) -> bytes:
    # No file object: in a folder of small images making one would cost more than reading it.
    with refusals(path, "image"):
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, HEAD_BYTES)
        finally:
            os.close(file)


def unicode_name(path: Path, relative: str) -> str:
    if relative.isascii():
        return relative
    try:
        relative.encode()
    except UnicodeEncodeError as problem:
        raise damage(
            path, f"holds a file whose name is not UTF-8: {os.fsencode(relative)!r}. Rename it."
        ) from problem
    return relative


def read_whole(image: ImageFile) -> tuple[bytes, ImageHeader]:
    """The bytes of one image file and what they say of themselves.

    Raises:
        InvalidInputError: it is cut short, or is no longer in the format that it was found in.
    """
    with refusals(image.path, "image"):
        data = Path(image.path).read_bytes()
    return data, check_whole(image.path, data, (image.codec,))


def check_whole(
    path: str, data: bytes, codecs: Collection[str], look: Callable[[bytes], ImageHeader] = examine
) -> ImageHeader:
    """The header of an image file that was read, in one of `codecs`; `look` examines it.

    Raises:
        InvalidInputError: it is cut short, or in none of these formats any more.
    """
    try:
        header = look(data)
    except InvalidInputError as problem:
        raise damage(path, f"{problem}. {_ADVICE}") from problem
    if header.codec not in codecs:
        found = " or ".join(sorted(codecs))
        raise damage(path, f"was {found} and became {header.codec} while it was being read")
    return header


def _problem(image: ImageFile) -> str:
    with refusals(image.path, "image"):
        data = Path(image.path).read_bytes()
    try:
        examine(data)
    except InvalidInputError as problem:
        return str(problem)
    return ""
