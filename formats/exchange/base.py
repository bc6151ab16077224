"""What is every importer and exporter, so that one registry and one test suite serve them all?

A format is a record of functions. `read` opens a path and answers with a `Reading`: the schema is
known at once, the rows come as batches of bounded bytes while they are asked for. `write` takes a
dataset and a path that does not exist yet. Nothing here is read twice, and nothing unpickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.damage import damage, refusals, sentence
from tensorrepo.repo.errors import Error, InvalidInputError

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import InputBatch, Schema

BATCH_BYTES = 8 << 20  # of one batch, unless a single row is larger
# zlib never expands more than this, so a header that promises more than file bytes times this lies.
DEFLATE_LIMIT = 1032
MAX_NOTES = 20
MAX_SKIPPED = 1000  # records passed over that are kept with their reason; the rest is counted


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows came from, as lineage notes it."""

    path: str
    format: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was passed over: `row` is its number in `source`, from 0; None: all of it."""

    source: str
    row: int | None
    reason: str


@dataclass(slots=True)
class Damage:
    """What a reading does about records that cannot be read, and which ones it passed over.

    Attributes:
        skip: pass such records over; else the first one ends the reading.
        count: records passed over so far.
        skipped: the first `MAX_SKIPPED` of them.
    """

    skip: bool = False
    count: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def meet(self, source: object, row: int | None, problem: Exception) -> None:
        """Note a record that cannot be read, or raise `problem` when none may be passed over.

        Raises:
            InvalidInputError: `problem` itself, or what it says when it is none of ours.
        """
        if not self.skip:
            raise problem if isinstance(problem, Error) else damage(source, sentence(problem))
        self.count += 1
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(Skipped(str(source), row, str(problem)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it, once the reading is over."""
        told = [f"passed over: {item.reason}" for item in self.skipped[: MAX_NOTES - 1]]
        more = self.count - len(told)
        return (*told, f"passed over: {more} more") if more else tuple(told)


@dataclass(frozen=True, slots=True)
class Reading:
    """A foreign file or folder, opened.

    `rows` is None when only reading tells; `bytes` counts what is stored on the disk. `batches` can
    be walked once, and raises `InvalidInputError` at the row where the source turns out damaged.
    `notes` say what a user should know: files passed over, splits found. `damage` fills while
    batches are walked. `properties` are facts of the whole that have no row: names of classes.
    """

    schema: Schema
    rows: int | None
    bytes: int
    batches: Iterator[InputBatch]
    origin: Origin
    notes: tuple[str, ...] = ()
    damage: Damage = field(default_factory=Damage)
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a format: `parse` takes what the SDK gives or the text of the command line."""

    name: str
    meaning: str
    parse: Callable[[object], object] = str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path whose format is asked for. `head` begins its content, of gzip the content inside.

    `names` are a folder's ordinary files, the first of them when there are very many.
    """

    path: Path
    head: bytes
    names: tuple[PurePath, ...] = ()
    is_folder: bool = False
    bytes: int = 0
    gzipped: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """One foreign format. `matches` looks at content and names, and claims only what is certain.

    `covers` are formats whose files are parts of this one: images that annotations belong to.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    matches: Callable[[Candidate], bool]
    read: Callable[..., Reading]
    write: Callable[..., None] | None = None
    read_options: tuple[Option, ...] = ()
    write_options: tuple[Option, ...] = ()
    covers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """A library's object that is read as rows, where a path is asked for otherwise."""

    name: str
    title: str
    matches: Callable[[object], bool]
    read: Callable[..., Reading]
    read_options: tuple[Option, ...] = ()


def file_bytes(path: Path) -> int:
    with refusals(path, "file"):
        return path.stat().st_size


def shorten_notes(notes: list[str]) -> tuple[str, ...]:
    """At most `MAX_NOTES` lines, the last one counting the rest."""
    if len(notes) <= MAX_NOTES:
        return tuple(notes)
    kept = notes[: MAX_NOTES - 1]
    return (*kept, f"and {len(notes) - len(kept)} more")


def parse_flag(value: object) -> bool:
    """A yes-or-no option."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise InvalidInputError(f"expected true or false, got {value!r}")
    return words[str(value).lower()]


def parse_damaged(value: object) -> bool:
    """Whether records that cannot be read are passed over: raise or skip."""
    if value not in ("raise", "skip"):
        raise InvalidInputError(f"expected raise or skip, got {value!r}")
    return value == "skip"


def parse_names(value: object) -> tuple[str, ...]:
    """A list of names: a sequence, or one text with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise InvalidInputError(f"expected a list of names, got {value!r}")
    return tuple(value)


DAMAGED = Option("damaged", "records that cannot be read: raise or skip", parse_damaged)
