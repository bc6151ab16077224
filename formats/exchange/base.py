"""Interface of importers and exporters: formats, options, opened sources, ignore rules.

A format is a record of functions. `read` opens a path and answers with a `Reading`: the schema is
known at once, the rows come as batches of bounded bytes while they are asked for. `write` takes a
dataset and a path that does not exist yet. Nothing here is read twice, and nothing unpickles.

Its lines are git's: `#` comments, `!` takes back, a final `/` means folders only, a `/` elsewhere
ties the pattern to the folder of the file, `*` and `?` stay inside one name, `**` crosses folders.
The last line that matches decides. What lies in a folder that is left out cannot be taken back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

from tensorrepo.formats.common.damage import damage, refusals, sentence, together
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, PermissionDenied

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.schema.schema import ColumnBatch, InputBatch, Schema


BATCH_BYTES = 8 << 20  # of one batch, unless a single row is larger
# zlib never expands more than this, so a header that promises more than file bytes times this lies.
DEFLATE_LIMIT = 1032
MAX_NOTES = 20
Grouped = TypeVar("Grouped")
SKIP_ADVICE = "damaged=skip passes over such files."
MOST_TOLD = 10  # problems of one error
MAX_SKIPPED = 1000  # records passed over that are kept with their reason; the rest is counted


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object behind a URL: its name below it ("": the URL itself), and which version it is."""

    name: str
    bytes: int
    version: str


@dataclass(frozen=True, slots=True)
class ImportOrigin:
    """Where rows came from, as lineage notes it.

    Attributes:
        path: path, or URL without secrets.
        format: name of the format.
        files: number of files.
        bytes: bytes of them.
        objects: objects behind a URL, if their versions can be told; else none.
        options: digest of how they were read.
    """

    path: str
    format: str
    files: int
    bytes: int
    objects: tuple[SourceObject, ...] = ()
    options: str = ""


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
        skip: pass such records over; else they end the reading.
        collect: go on to look for others when one ends it, and tell of them all together.
        count: records passed over so far.
        skipped: the first `MAX_SKIPPED` of them.
    """

    skip: bool = False
    collect: bool = False
    count: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[Error] = field(default_factory=list)

    def meet(self, source: object, row: int | None, problem: Exception) -> None:
        """Note a record that cannot be read, or raise `problem` when none may be passed over.

        Raises:
            InvalidInputError: `problem` itself, or what it says when it is none of ours.
        """
        if not self.skip:
            ours = problem if isinstance(problem, Error) else damage(source, sentence(problem))
            self.problems.append(ours)
            if not self.collect or len(self.problems) == MOST_TOLD:
                self.settle()
            return
        self.count += 1
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(Skipped(str(source), row, str(problem)))

    @contextmanager
    def opening(self, file: Path, what: str, *damaged: type[Exception]) -> Iterator[None]:
        """`refusals` of one file among others, which is met as a whole where it may not be read.

        A disk that fails is no reason to leave a file out: that ends the reading always.
        """
        try:
            with refusals(file, what, *damaged):
                yield
        except PermissionDenied as problem:
            advised = PermissionDenied(f"{problem} {SKIP_ADVICE}")
            self.meet(file, None, problem if self.skip else advised)

    def settle(self) -> None:
        """Raise what was met that may not be passed over. The one who walks calls it at the end."""
        found, self.problems = self.problems, []
        if found:
            more = "or more " if len(found) == MOST_TOLD else ""
            advice = "damaged=skip passes over them." if len(found) > 1 else ""
            raise together(found, f"{more}records cannot be read or do not fit", advice)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it, once the reading is over."""
        told = [f"passed over: {item.reason}" for item in self.skipped[: MAX_NOTES - 1]]
        more = self.count - len(told)
        return (*told, f"passed over: {more} more") if more else tuple(told)


@dataclass(slots=True)
class BytesRead:
    """How many bytes of a source's files were read so far, as they lie on the disk."""

    _closed: int = 0
    _open: IO[bytes] | None = None

    def __call__(self) -> int:
        now = self._open
        return self._closed if now is None or now.closed else self._closed + now.tell()

    @contextmanager
    def of(self, file: IO[bytes]) -> Iterator[None]:
        """Count `file` with those before it."""
        self._open = file
        try:
            yield
        finally:
            self._closed, self._open = self(), None


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A foreign file or folder, opened.

    `rows` is None when only reading tells. `batches` can be walked once, and raises
    `InvalidInputError` at the row where the source turns out damaged. `notes` say what a user
    should know: files passed over, splits found. `damage` fills while batches are walked.
    `properties` are facts of the whole that have no row: names of classes. `key` are columns that
    tell rows apart by the nature of the source: the names of files. `bytes_read` is asked where
    `rows` are not known.
    """

    schema: Schema
    rows: int | None
    batches: Iterator[InputBatch]
    origin: ImportOrigin
    notes: tuple[str, ...] = ()
    damage: Damage = field(default_factory=Damage)
    properties: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    bytes_read: BytesRead | None = None

    @property
    def bytes(self) -> int:
        """What is stored of it on the disk."""
        return self.origin.bytes


@dataclass(frozen=True, slots=True)
class FormatOption:
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
    `keeps_forms`: it is given rows in the Arrow types that their source had, such as dictionaries.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    matches: Callable[[Candidate], bool]
    read: Callable[..., OpenedSource]
    write: Callable[..., None] | None = None
    read_options: tuple[FormatOption, ...] = ()
    write_options: tuple[FormatOption, ...] = ()
    covers: tuple[str, ...] = ()
    keeps_forms: bool = False


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """A library's object that is read as rows, where a path is asked for otherwise."""

    name: str
    title: str
    matches: Callable[[object], bool]
    read: Callable[..., OpenedSource]
    read_options: tuple[FormatOption, ...] = ()


def file_bytes(path: Path) -> int:
    with refusals(path, "file"):
        return path.stat().st_size


def origin_of(path: Path, format_name: str, files: Collection[Path]) -> ImportOrigin:
    """The origin of rows that came from these files, named `path` as a whole."""
    return ImportOrigin(str(path), format_name, len(files), sum(map(file_bytes, files)))


def source_files(
    path: Path, wanted: Callable[[str], bool], what: str, hidden: tuple[str, ...] = (".",)
) -> list[Path]:
    """`path` itself, or the files of a folder whose names in small letters are `wanted`, in order.

    Left out are ignored files, and those below names that begin like `hidden`. `what` says which
    files are looked for.
    """
    if not path.is_dir():
        return [path]
    ignore = read_ignore(path)
    files: list[Path] = []

    def kept(folder: str, names: Iterable[str], *, are_folders: bool) -> list[str]:
        inside = Path(folder).relative_to(path)
        return [
            name
            for name in names
            if not name.startswith(hidden)
            and not ignore.leaves_out((inside / name).as_posix(), is_folder=are_folders)
        ]

    for folder, folders, names in os.walk(path, onerror=_refuse_folder):
        folders[:] = kept(folder, folders, are_folders=True)
        called = [name for name in names if wanted(name.lower())]
        found = (Path(folder, name) for name in kept(folder, called, are_folders=False))
        with refusals(path, "folder"):
            files += filter(Path.is_file, found)
    if not files:
        raise damage(path, f"holds no {what}")
    return sorted(files)


def _refuse_folder(problem: OSError) -> NoReturn:
    """What else would be passed over without a word, with all that is in it."""
    with refusals(problem.filename, "folder"):
        raise problem


def grouped(
    sized: Iterable[tuple[Grouped, int]], limit: int = BATCH_BYTES
) -> Iterator[list[Grouped]]:
    """What comes with its bytes, in groups of at most `limit` bytes, or of one that is larger."""
    group: list[Grouped] = []
    held = 0
    for each, size in sized:
        if group and held + size > limit:
            yield group
            group, held = [], 0
        group.append(each)
        held += size
    if group:
        yield group


def streamed_groups(
    sized: Iterator[tuple[Grouped, int]], limit: int
) -> Iterator[Iterator[Grouped]]:
    """What comes with its bytes, in runs of about `limit` bytes; at least one, perhaps empty.

    A run must be walked before the next one is asked for.
    """

    def run(item: tuple[Grouped, int] | None) -> Iterator[Grouped]:
        held = 0
        while item is not None:
            yield item[0]
            held += item[1]
            item = next(sized, None) if held < limit else None

    yield run(next(sized, None))
    while (first := next(sized, None)) is not None:
        yield run(first)


def columns_of(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    """Rows as columns; a column that a row lacks is null there."""
    held = list(rows)
    return {name: [row.get(name) for row in held] for name in names}


def first_of(sized: Iterable[tuple[Grouped, int]], most: int, limit: int) -> list[Grouped]:
    """The first of what comes with its bytes: `most` of them, or fewer of `limit` bytes."""
    first: list[Grouped] = []
    held = 0
    for each, size in sized:
        first.append(each)
        held += size
        if len(first) >= most or held >= limit:
            break
    return first


def with_split(parts: Sequence[Iterable[ColumnBatch]]) -> Iterator[ColumnBatch]:
    """The batches of splits, one after the other; if there are several, a column tells which."""
    for number, batches in enumerate(parts):
        for batch in batches:
            rows = len(next(iter(batch.values())))
            yield {**batch, "split": [number] * rows} if len(parts) > 1 else batch


def split_note(rows: Mapping[str, int], unit: str) -> str:
    """What to say of a source that has several splits, and of how many rows each."""
    counts = ", ".join(f"{name} ({count} {unit})" for name, count in rows.items())
    return f"splits {counts}: column 'split' tells them apart; option split takes one"


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


DAMAGED = FormatOption("damaged", "records that cannot be read: raise or skip", parse_damaged)


FILE_NAME = ".tensorrepoignore"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: `pattern` matches whole paths relative to the folder, with slashes."""

    pattern: re.Pattern[str]
    folders_only: bool
    takes_back: bool


@dataclass(frozen=True, slots=True)
class Ignore:
    """The rules of one file, in its order."""

    rules: tuple[Rule, ...] = ()

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path`, relative and with slashes, is left out by the rules themselves."""
        out = False
        for rule in self.rules:
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                out = not rule.takes_back
        return out


def parse_ignore(text: str) -> Ignore:
    """The rules that the text of an ignore file states."""
    return Ignore(tuple(rule for line in text.splitlines() if (rule := _rule(line)) is not None))


def read_ignore(folder: Path) -> Ignore:
    """The rules in `folder`'s own ignore file; none when there is no such file."""
    path = folder / FILE_NAME
    if not path.is_file():
        return Ignore()
    with refusals(path, "ignore file", UnicodeDecodeError):
        return parse_ignore(path.read_text("utf-8"))


def _rule(line: str) -> Rule | None:
    line = line.rstrip()
    if not line or line.startswith("#"):
        return None
    takes_back = line.startswith("!")
    line = line.removeprefix("!").removeprefix("\\")  # "\#" and "\!" begin ordinary names
    folders_only = line.endswith("/")
    line = line.removesuffix("/")  # one: git takes "a//" for a path that no name matches
    anchored = "/" in line
    pieces = re.split(r"(\*\*/|/\*\*$|\*+|\?|\[!?[^]/]+\])", line.removeprefix("/"))
    expression = "".join(map(_expression, pieces))
    try:
        pattern = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    except re.error as problem:
        raise damage(FILE_NAME, f"line {line!r} is no pattern: {problem}") from problem
    return Rule(pattern, folders_only, takes_back)


def _expression(piece: str) -> str:
    """A regular expression for a piece of a pattern."""
    known = {"**/": "(?:.*/)?", "/**": "/.+", "?": "[^/]"}
    if piece in known:
        return known[piece]
    if piece and not piece.strip("*"):
        return "[^/]*"
    if len(piece) > 2 and piece[0] == "[":
        inner = piece[1:-1].replace("\\", "\\\\").replace("^", "\\^")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(piece)
