"""Walk over a folder of images, and their parallel read-ahead.

The walk honours `.tensorrepoignore`, leaves out hidden files and does not follow links to folders.
Its order is that of paths compared part by part, so that two walks meet the same rows.

A portion of files is read with the interpreter's lock let go of once, into the memory that becomes
a batch. A file is opened once and never asked for its size: looking it up by name would take as
long as reading it. How many files make a portion is estimated from what their folder held at the
survey; where that was wrong, a portion ends early and its rest becomes the next one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.exchange.base import BATCH_BYTES, SKIP_ADVICE, Ignore
from tensorrepo.formats.images.headers import HEAD_BYTES, JPEG_MODES, SUFFIXES, ImageHeader, examine
from tensorrepo.formats.native.files import BEST, CODECS, FileReader
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, PermissionDenied

CLASSES_FILE = "classes.txt"
_SUFFIXES = frozenset(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
RUN_FILES = 1024
_LOOKERS = 2
_name_of = attrgetter("name")
_UNREADABLE = "permission denied"
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
class ImagePlace:
    """What one folder holds itself, without the folders in it."""

    folders: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    codecs: set[str] = field(default_factory=set)

    def add(self, rows: int, stored: int, codecs: Iterable[str]) -> None:
        self.rows += rows
        self.bytes += stored
        self.codecs.update(codecs)


@dataclass(frozen=True, slots=True)
class FolderSurvey:
    """What a first walk over a folder finds: folders with images, and what is passed over.

    `damaged` says of such images what is wrong with them.
    """

    places: Mapping[tuple[str, ...], ImagePlace]
    passed_over: tuple[str, ...]
    damaged: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ImageRun:
    """Some files that follow each other in one folder: `folder` is "" or ends in a slash.

    `note` says what is passed over behind them, if anything is.
    """

    folder: str
    entries: Sequence[os.DirEntry[str]]
    note: str = ""


def survey_folder(path: Path, ignore: Ignore, *, examined: bool) -> FolderSurvey:
    """Count the images of every folder; with `examined` read each one to find damaged ones."""
    places: dict[tuple[str, ...], ImagePlace] = {}
    passed_over: list[str] = []
    damaged: dict[str, str] = {}
    for looked in _look_ahead(walk_files(path, ignore)):
        folders = folders_of(looked.run.folder)
        if not examined and looked.are_plain_images:
            place = places.setdefault(folders, ImagePlace(folders))
            place.add(len(looked.codecs), sum(looked.sizes), looked.codecs)
            continue
        for each in _readable(path, looked, damaged) if examined else (looked,):
            for image in _images_of(path, each, passed_over, examined=examined):
                if examined and (problem := _problem(image)):
                    damaged[image.relative] = problem
                else:
                    place = places.setdefault(folders, ImagePlace(folders))
                    place.add(1, image.bytes, {image.codec})
    return FolderSurvey(places, tuple(passed_over), damaged)


def walk_images(
    path: Path, ignore: Ignore, passed_over: list[str], *, examined: bool
) -> Iterator[ImageFile]:
    """Every image below `path` in the order of paths; what else there is goes to `passed_over`.

    Unless damaged images are `examined` and passed over, a file that is only called like an image
    is an error: most likely it was cut short before its first byte.
    """
    for looked in _look_ahead(walk_files(path, ignore)):
        yield from _images_of(path, looked, passed_over, examined=examined)


@dataclass(frozen=True, slots=True)
class _Looked:
    """A run whose files were looked into: format ("" for none) and bytes of each of its entries.

    `problem` is why no more is known of the entry behind those.
    """

    run: ImageRun
    codecs: Sequence[str]
    sizes: Sequence[int]
    problem: OSError | None

    @property
    def are_plain_images(self) -> bool:
        """Whether there is nothing to say but how many there are, and how large."""
        names = "".join(map(_name_of, self.run.entries))
        is_said = self.problem is not None or self.run.note
        return not is_said and "" not in self.codecs and names.isascii()


def _images_of(
    path: Path, looked: _Looked, passed_over: list[str], *, examined: bool
) -> Iterator[ImageFile]:
    folder = looked.run.folder
    known = zip(looked.run.entries, looked.codecs, looked.sizes, strict=False)
    for entry, codec, stored in known:
        relative = folder + entry.name
        if codec:
            yield ImageFile(unicode_name(path, relative), entry.path, stored, codec)
        elif not examined and is_called_image(relative):
            raise damage(entry.path, f"is called like an image and is none. {_ADVICE}")
        else:
            passed_over.append(f"{relative} is no image")
    if looked.problem is not None:
        try:
            with refusals(looked.problem.filename, "image"):
                raise looked.problem
        except PermissionDenied as problem:
            raise PermissionDenied(f"{problem} {SKIP_ADVICE}") from problem
    if looked.run.note:
        passed_over.append(looked.run.note)


def _readable(path: Path, looked: _Looked, damaged: dict[str, str]) -> Iterator[_Looked]:
    """A run without its files that may not be read: those are told in `damaged`."""
    while isinstance(looked.problem, PermissionError):
        run, at = looked.run, len(looked.codecs)
        yield replace(looked, run=replace(run, note=""), problem=None)
        relative = unicode_name(path, run.folder + run.entries[at].name)
        damaged[relative] = _UNREADABLE
        looked = _look(replace(run, entries=run.entries[at + 1 :]), BEST)
    yield looked


def _look_ahead(runs: Iterator[ImageRun]) -> Generator[_Looked]:
    """The same runs, looked into by threads while those before them are counted."""
    threads = ThreadPoolExecutor(_LOOKERS, "look-image")
    looking: deque[Future[_Looked]] = deque()
    try:
        for run in runs:
            looking.append(threads.submit(_look, run, BEST))
            if len(looking) > _LOOKERS:
                yield looking.popleft().result()
        while looking:
            yield looking.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _look(run: ImageRun, reader: FileReader) -> _Looked:
    """Look into the files of a run. What is no file, or a link to none, is never opened."""
    is_file: list[bool] = []
    problem: OSError | None = None
    try:
        is_file.extend(map(os.DirEntry.is_file, run.entries))
    except OSError as error:
        problem = error
    paths = [entry.path for entry, each in zip(run.entries, is_file, strict=False) if each]
    found = reader.look(paths)
    if found.error:
        problem = found.problem(paths)
    codecs = [CODECS[codec] for codec in found.records["codec"].tolist()]
    sizes = found.records["end"].tolist()
    for at, each in enumerate(is_file):
        if not each and at <= len(codecs):  # behind a problem nothing is known
            codecs.insert(at, "")
            sizes.insert(at, 0)
    return _Looked(run, codecs, sizes, problem)


def walk_files(path: Path, ignore: Ignore) -> Iterator[ImageRun]:
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
            note = f"{level.folder}{below.name} is a link to a folder, which is not followed"
            yield ImageRun(level.folder, (), note)
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
            entries = [entry for entry in found if entry.name[0] != "."]
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

    def files(self) -> Iterator[ImageRun]:
        """The files up to the next folder, which is where `at` is then."""
        start, self.at = self.at, next(self.folders, len(self.entries))
        for first in range(start, self.at, RUN_FILES):
            yield ImageRun(self.folder, self.entries[first : min(first + RUN_FILES, self.at)])

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
    """The bytes of an image file, and what they say of themselves. Errors: `check_whole`."""
    with refusals(image.path, "image"):
        data = Path(image.path).read_bytes()
    return data, check_whole(image.path, data, (image.codec,))


def check_whole(path: str, data: bytes, codecs: Collection[str]) -> ImageHeader:
    """The header of an image file. Raises InvalidInputError: cut short, or in none of `codecs`."""
    try:
        header = examine(data)
    except InvalidInputError as problem:
        raise damage(path, f"{problem}. {_ADVICE}") from problem
    if header.codec not in codecs:
        found = " or ".join(sorted(codecs))
        raise damage(path, f"was {found} and became {header.codec} while it was being read")
    return header


def _problem(image: ImageFile) -> str:
    try:
        with refusals(image.path, "image"):
            data = Path(image.path).read_bytes()
        examine(data)
    except PermissionDenied:  # since it was looked into
        return _UNREADABLE
    except InvalidInputError as problem:
        return str(problem)
    return ""


READERS = 2
PORTION_FILES, PORTION_BYTES = 4096, BATCH_BYTES  # so many files, or bytes, are read by one thread
AHEAD = 4  # portions
# Files are chosen to take less than there is room: sizes differ, and a rest is a portion too.
_CHOSEN_BYTES = PORTION_BYTES * 7 // 8
_TAKEN = 4  # portions that the taker holds on to: rows being stored, and those around them
_JPEG = CODECS.index("jpeg")


class WantedFile(NamedTuple):
    """A file to be read if it is an image, in one of the formats of its place."""

    relative: str
    path: str
    place: ImagePlace


@dataclass(frozen=True, slots=True)
class Portion:
    """Images that were read together.

    Attributes:
        files: files of the images; what was no image is left out.
        data: uint8, the images one behind the other.
        ends: where each of them ends in `data`.
        headers: what each says of itself.
        rest: files that are still to be read, behind these.
        problem: why the first of the rest cannot be read; nothing is, then.
    """

    files: Sequence[WantedFile]
    data: NDArray[np.uint8]
    ends: Sequence[int]
    headers: Sequence[ImageHeader]
    rest: Sequence[WantedFile] = ()
    problem: Error | None = None


def read_ahead(
    runs: Iterable[Sequence[WantedFile]], reader: FileReader = BEST
) -> Generator[Portion]:
    """The images among the files, whole and in order.

    The files of one run have one place. In memory are no more than `AHEAD` portions, each of
    `PORTION_BYTES` or of one larger file.

    Raises:
        InvalidInputError: an image is cut short, or in a format that it was not in before. The
            images before it have come.
    """
    threads = ThreadPoolExecutor(READERS, "read-image")
    reading: deque[Future[Portion]] = deque()
    pool = Pool((AHEAD + READERS + _TAKEN) * PORTION_BYTES)

    def first() -> Iterator[Portion]:
        portion = reading.popleft().result()
        if portion.files:
            yield portion
        if portion.problem is not None:
            raise portion.problem
        if portion.rest:
            reading.appendleft(threads.submit(_read_portion, portion.rest, pool, reader))

    try:
        for wanted in _portions(runs):
            reading.append(threads.submit(_read_portion, wanted, pool, reader))
            while len(reading) >= AHEAD:
                yield from first()
        while reading:
            yield from first()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _portions(runs: Iterable[Sequence[WantedFile]]) -> Iterator[list[WantedFile]]:
    portion: list[WantedFile] = []
    room = _CHOSEN_BYTES
    for run in runs:
        at = 0
        while at < len(run):
            place = run[at].place
            each = max(1, place.bytes // max(1, place.rows))  # about so many bytes
            fit = min(len(run) - at, PORTION_FILES - len(portion), room // each)
            if portion and not fit:
                yield portion
                portion, room = [], _CHOSEN_BYTES
                continue
            fit = max(1, fit)
            portion += run[at : at + fit]
            at, room = at + fit, room - fit * each
    if portion:
        yield portion


def _read_portion(files: Sequence[WantedFile], pool: Pool, reader: FileReader) -> Portion:
    block = pool.array((PORTION_BYTES,), np.dtype(np.uint8))
    paths = [file.path for file in files]
    found = reader.read(paths, block)
    images: list[WantedFile] = []
    ends: list[int] = []
    headers: list[ImageHeader] = []
    start = 0
    problem: Error | None = None
    done = len(found.records)
    try:
        facts = found.records.tolist()
        for file, (end, height, width, _, codec, components) in zip(files, facts, strict=False):
            if not codec:
                continue
            if components and codec == _JPEG and "jpeg" in file.place.codecs:
                header = ImageHeader("jpeg", height, width, JPEG_MODES.get(components))
            else:
                header = check_whole(file.path, block[start:end].tobytes(), file.place.codecs)
            images.append(file)
            ends.append(end)
            headers.append(header)
            start = end
        if found.error:
            with refusals(files[done].path, "image"):
                raise found.problem(paths)
        if not done:
            return _read_alone(files)
    except Error as error:
        problem = error
    return Portion(images, block[:start], ends, headers, files[done:], problem)


def _read_alone(files: Sequence[WantedFile]) -> Portion:
    """The first file, which does not fit into the memory of a portion."""
    file = files[0]
    with refusals(file.path, "image"), open(file.path, "rb", buffering=0) as opened:
        data = opened.readall()
    header = check_whole(file.path, data, file.place.codecs)
    return Portion([file], np.frombuffer(data, np.uint8), [len(data)], [header], files[1:])
