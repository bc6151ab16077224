"""CSV and other delimited text: reader.

Arrow reads CSV ahead on threads of its own. After an error, or when nobody asks for more, they may
still be about to call Python; a program that ends in this moment is aborted. So whatever they call
is lent, and whoever lent it waits until they have let go of it: then nobody can call it any more.

Arrow stops at the first cell that does not convert. So every cell comes as text here and is
converted by column; only where that fails, value by value. Slower than `csv`, and only used when
damaged rows shall be skipped.

Types are inferred from the first block (4 MiB) and then enforced: a later value that does not fit
is an error that names its line and column, never a silent change of type. A column of numbers that
a value of that block makes text is told, with the line. Of names that a header has twice the later
ones get a number. An empty cell is null, a quoted empty one is empty text; other words for
"missing" are told by `null_values`.
"""

from __future__ import annotations

import codecs
import gzip
import re
import time
import traceback
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.csv as pa_csv

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.exchange.base import (
    MOST_TOLD,
    BytesRead,
    Candidate,
    Damage,
    OpenedSource,
)
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS, TableFile
from tensorrepo.formats.exchange.column_choice import ColumnChoice
from tensorrepo.formats.exchange.tables.files import has_table_files, naming_file, read_tables
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError

if TYPE_CHECKING:
    Handler = Callable[[Any], str]
    Open = Callable[["LentStream", "Handler | None"], pc.CSVStreamingReader]


_PATIENCE_SECONDS = 30.0  # then it is given up: an abort is less than a program that hangs
_LOOK_SECONDS = 0.0005


class LentStream:
    """As much of a file as Arrow asks of one. Called by any thread."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = Lock()
        self._is_over = False

    def read(self, size: int) -> bytes:
        with self._lock:
            return b"" if self._is_over else self._stream.read(size)

    def end(self) -> None:
        """From here on there is nothing to read. Returns when nobody reads any more."""
        with self._lock:
            self._is_over = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Whoever lent it closes it."""


class LentReader:
    """A reader of Arrow over a stream of ours, for one `with` block.

    After it no thread of Arrow has anything of ours.
    """

    def __init__(self, stream: IO[bytes], opener: Open, handler: Handler | None = None) -> None:
        self._stream: LentStream | None = LentStream(stream)
        self._handler = None if handler is None else partial(handler)  # outlived by `handler`
        lent = (self._stream, self._handler)
        # Without callbacks: those of a reader that the garbage collector closes are never called.
        self._watched = [weakref.ref(each) for each in lent if each is not None]
        self._reader: pc.CSVStreamingReader | None = None
        self._opener: Open | None = opener

    def __enter__(self) -> Self:
        assert self._stream is not None, "a stream is lent once"
        assert self._opener is not None, "a stream is lent once"
        try:
            self._reader = self._opener(self._stream, self._handler)
        except BaseException as problem:
            problem.__traceback__ = None  # its frames hold the stream
            self._take_back()
            raise
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        if problem is not None:
            traceback.clear_frames(problem.__traceback__)  # that of `read` holds the stream
        self._take_back()

    @property
    def schema(self) -> pa.Schema:
        assert self._reader is not None, "asked in the `with` block"
        return self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._reader is not None:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return
            yield batch

    def _take_back(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()
        del stream
        self._reader = self._handler = self._opener = None
        until = time.monotonic() + _PATIENCE_SECONDS
        while any(each() is not None for each in self._watched) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)


class RowsOfOtherWidth:
    """Told by Arrow of rows that have too many cells or too few; keeps their numbers."""

    def __init__(self, path: Path, met: Damage, *, header: bool) -> None:
        self._path, self._met = path, met
        self._before = 2 if header else 1  # Arrow counts from 1, and the header too
        self.numbers: list[int] = []

    def __call__(self, row: Any) -> str:
        number = row.number - self._before
        if number not in self.numbers[-1:]:
            insort(self.numbers, number)
            problem = f"has {row.actual_columns} cells, expected {row.expected_columns}"
            self._met.meet(self._path, number, damage(f"{self._path}, row {number}", problem))
        return "skip"

    def number(self, kept: int) -> int:
        """The number in the file of a row that is the `kept`-th of the rows that were kept."""
        number = kept
        while (passed := bisect_right(self.numbers, number)) != number - kept:
            number = kept + passed
        return number


def skip_misfits(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    types: Mapping[str, pa.DataType],
    passed: RowsOfOtherWidth,
    met: Damage,
) -> Iterator[pa.RecordBatch]:
    """Batches of text, converted to `types`; rows with a cell that does not convert left out."""
    first = 0
    for batch in batches:
        arrays, fits = [], pa.array([True] * batch.num_rows)
        for name, kind in types.items():
            array = _converted(batch.column(name), kind)
            wrong = pc.and_(pc.is_null(array), pc.is_valid(batch.column(name)))
            for at in pc.indices_nonzero(wrong).to_pylist():
                where = f"{path}, row {passed.number(first + at)}, column {name!r}"
                problem = damage(where, f"{batch.column(name)[at].as_py()!r:.80} is no {kind}")
                if fits[at].as_py():
                    met.meet(path, passed.number(first + at), problem)
            fits = pc.and_not(fits, wrong)
            arrays.append(array)
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, names=list(types)).filter(fits)


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as values of a type; null where that fails."""
    if pa.types.is_string(kind):
        return array
    trimmed = pc.utf8_trim_whitespace(array)
    try:
        return trimmed.cast(kind)
    except pa.ArrowException:
        return pa.concat_arrays([_one(trimmed.slice(at, 1), kind) for at in range(len(trimmed))])


def _one(value: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return value.cast(kind)
    except pa.ArrowException:
        return pa.nulls(1, kind)


SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
BLOCK_BYTES = 4 << 20  # of one batch, of the part that types are inferred from, and of one row
_DELIMITERS = ",;\t|"
_ROW = re.compile(r"Row #(\d+)")
_COLUMN = re.compile(r"CSV column #(\d+)")
_ZEROS = r"^\s*[+-]?0\d"
_WHOLE = r"^-?\d{1,1000}$"
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


def read_csv(
    path: Path,
    *,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    null_values: tuple[str, ...] = (),
    text_columns: tuple[str, ...] = (),
    columns: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    damaged: bool = False,
) -> OpenedSource:
    """A delimited text file, or all those of a folder that have the same columns.

    Args:
        path: file or folder; gzip is told by content.
        delimiter: between cells; otherwise the one of ``, ; tab |`` that the first line has most.
        header: whether the first line names the columns; else they are called f0, f1, ...
        encoding: character encoding, by Python's name for it.
        null_values: words that stand for a missing value, besides the empty cell.
        text_columns: columns kept as text although they look like numbers ("007").
        columns: only these.
        exclude: all but these.
        required: columns that have a value in every row, ``*`` for all: a row without one is an
            error. Any other may be null, since only the last row tells.
        damaged: pass over files that may not be read, and rows with too many cells or too few, or a
            cell that is not of the type of the first rows.
    """
    met, read = Damage(skip=damaged), BytesRead()
    try:
        codecs.lookup(encoding)
    except LookupError as problem:
        raise InvalidInputError(f"encoding {encoding!r} is unknown") from problem
    files = Dialect(delimiter, header, encoding, ("", *null_values), text_columns)
    opened: list[pa.Schema] = []
    notes: list[str] = []

    def open_one(file: Path) -> TableFile | None:
        # What the first file's columns turned out to be holds for all.
        table: TableFile | None = None
        with met.opening(file, "CSV file"):
            table = _open(file, files, opened[0] if opened else None, met, notes, read)
            opened.append(table.schema)
        return table

    reading = read_tables(path, "csv", SUFFIXES, open_one, ColumnChoice(columns, exclude))
    with naming_file(path):
        schema = _with_required(reading.schema, required)
    # A cell is text, whichever of its types Arrow read it as.
    told = (*reading.notes, *notes)
    schema = schema.without_forms()
    return replace(reading, schema=schema, damage=met, notes=told, bytes_read=read)


def _with_required(schema: Schema, names: tuple[str, ...]) -> Schema:
    """The schema, whose columns of these names have a value in every row."""
    wanted = schema.names if names == ("*",) else [schema.column(name).name for name in names]
    return Schema(
        tuple(
            replace(column, nullable=column.nullable and column.name not in wanted)
            for column in schema.columns
        )
    )


def matches_csv(candidate: Candidate) -> bool:
    return matches_text(candidate, SUFFIXES)


def matches_text(candidate: Candidate, suffixes: tuple[str, ...]) -> bool:
    """By suffix alone: text has no mark of its own."""
    if candidate.is_folder:
        return has_table_files(candidate, suffixes)
    return candidate.path.name.lower().endswith(suffixes) and is_text(candidate.head)


def is_text(head: bytes) -> bool:
    """Whether bytes may begin a text file: no NUL among them, unless they say that it is UTF-16."""
    return b"\0" not in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


@contextmanager
def open_text(path: Path, read: BytesRead | None = None) -> Iterator[IO[bytes]]:
    """The bytes of a text file, decompressed when they are gzip; `read` counts what is read."""
    with path.open("rb") as file, nullcontext() if read is None else read.of(file):
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as inner:
                yield inner  # type: ignore[misc]  # a binary stream in all but name
        else:
            yield file


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a text file is cut into cells."""

    delimiter: str | None
    header: bool
    encoding: str
    null_values: tuple[str, ...]
    text_columns: tuple[str, ...]
    names: tuple[str, ...] | None = None  # in place of a header that has one of them twice


def _open(
    path: Path,
    dialect: Dialect,
    known: pa.Schema | None,
    met: Damage,
    notes: list[str],
    read: BytesRead,
) -> TableFile:
    with refusals(path, "CSV file", *ARROW_ERRORS):
        dialect = replace(dialect, delimiter=dialect.delimiter or _guess_delimiter(path))
        # What is passed over here is met again, and told, when rows are read.
        ignored = RowsOfOtherWidth(path, Damage(skip=True), header=dialect.header)
        inferred = _inferred(path, dialect, ignored if met.skip else None)
        if len(set(inferred.names)) < len(inferred):
            dialect = replace(dialect, names=_numbered(inferred.names))
            notes += _twice_notes(path, inferred.names, dialect.names or ())
            inferred = _inferred(path, dialect, ignored if met.skip else None)
        types = _types(path, inferred, dialect, known)
        if known is None and (cells := _first_cells(path, dialect, inferred)) is not None:
            notes += _text_notes(cells, inferred, dialect.text_columns)
            notes += _zero_notes(cells, types)
            types |= _long_numbers(cells, types, notes)
    names = _column_names(types)
    schema = pa.schema(list(zip(names, types.values(), strict=True)))
    return TableFile(schema, None, lambda: _batches(path, dialect, types, names, met, read))


def _inferred(path: Path, dialect: Dialect, passed: RowsOfOtherWidth | None) -> pa.Schema:
    """The columns as the first block shows them."""
    try:
        with _reading(path, dialect, {}, passed) as reader:
            return reader.schema
    except pa.ArrowInvalid as problem:
        if _ROW.search(str(problem)):
            raise _explained(path, dialect, [], str(problem)) from problem
        raise


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """Names of columns, those that came before with a number behind them."""
    taken, numbered = set(names), []
    for at, name in enumerate(names):
        number, free = 1, name
        while free in numbered or (free in taken and name in names[:at]):
            number, free = number + 1, f"{name}_{number + 1}"
        numbered.append(free)
    return tuple(numbered)


def _twice_notes(path: Path, found: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    for at, (name, called) in enumerate(zip(found, names, strict=True), 1):
        if name != called:
            yield f"{path}: column {at} is called {name!r} as one before it: it is {called!r} here"


@dataclass(frozen=True, slots=True)
class _FirstCells:
    """The first block, every cell as text: it alone decides what columns are."""

    path: Path
    header: bool
    block: pa.RecordBatch
    ignored: RowsOfOtherWidth

    def place(self, row: int) -> str:
        line = _line_of(self.path, self.ignored.number(row) + 1 + self.header)
        return f"line {line} of {self.path}"


def _first_cells(path: Path, dialect: Dialect, inferred: pa.Schema) -> _FirstCells | None:
    everything = dict.fromkeys(inferred.names, pa.string())
    ignored = RowsOfOtherWidth(path, Damage(skip=True), header=dialect.header)
    with _reading(path, dialect, everything, ignored) as reader:
        block = next(iter(reader), None)
    return None if block is None else _FirstCells(path, dialect.header, block, ignored)


def _text_notes(
    cells: _FirstCells, inferred: pa.Schema, text_columns: tuple[str, ...]
) -> Iterator[str]:
    """Of columns that are text, although most of their values are numbers: the first odd one."""
    for field in inferred:
        if not pa.types.is_string(field.type) or field.name in text_columns:
            continue
        values = cells.block.column(field.name)
        numeric = pc.match_substring_regex(values, _NUMBER)
        numbers, others = pc.sum(numeric).as_py() or 0, pc.index(numeric, value=False).as_py()
        if others >= 0 and 2 * numbers > len(values) - values.null_count:
            value = values[others].as_py()
            yield (
                f"column {field.name!r} is text because of {cells.place(others)}: {value!r:.40} "
                f"among numbers. If it stands for a missing value: null_values={value:.40}"
            )


def _zero_notes(cells: _FirstCells, types: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Of columns of numbers that lose zeros before them, as numbers of houses and of post have."""
    for name in (name for name, kind in types.items() if pa.types.is_integer(kind)):
        values = cells.block.column(name)
        zeros = pc.match_substring_regex(values, _ZEROS)
        if (first := pc.index(zeros, value=True).as_py()) >= 0:
            yield (
                f"column {name!r} is numbers, without the zeros before them: {values[first]} in "
                f"{cells.place(first)}. To keep them: text_columns={name}"
            )


def _long_numbers(
    cells: _FirstCells, types: Mapping[str, pa.DataType], notes: list[str]
) -> dict[str, pa.DataType]:
    """Types of columns of whole numbers that 64 bits with a sign do not hold.

    Arrow takes them for floats, which do not tell long numbers apart.
    """
    found: dict[str, pa.DataType] = {}
    for name in (name for name, kind in types.items() if pa.types.is_floating(kind)):
        values = cells.block.column(name)
        if not pc.all(pc.match_substring_regex(values, _WHOLE)).as_py():
            continue
        numbers = list(map(int, values.drop_null().to_pylist()))
        if min(numbers) >= 0 and max(numbers) < 1 << 64:
            found[name] = pa.uint64()
            continue
        found[name] = pa.string()
        most = max(values.drop_null().to_pylist(), key=lambda value: abs(int(value)))
        place = cells.place(values.index(most).as_py())
        notes.append(f"column {name!r} is text because of {place}: 64 bits do not hold {most:.40}")
    return found


def _column_names(found: Iterable[str]) -> list[str]:
    """Names of columns; an unnamed one, as pandas writes its index, is called by its number."""
    return [name or f"f{number}" for number, name in enumerate(found)]


def _types(
    path: Path, inferred: pa.Schema, dialect: Dialect, known: pa.Schema | None
) -> dict[str, pa.DataType]:
    """The type of each column: as inferred, except what has no column type of its own."""
    types: dict[str, pa.DataType] = {}
    for field in inferred:
        if pa.types.is_binary(field.type):
            raise damage(
                path,
                f"column {field.name!r} is not {dialect.encoding} text. "
                "Say which encoding it is: encoding=latin-1",
            )
        textual = pa.types.is_null(field.type) or pa.types.is_time(field.type)
        textual = textual or field.name in dialect.text_columns
        types[field.name] = pa.string() if textual else field.type
    if known is not None and _column_names(types) == known.names:
        return dict(zip(types, known.types, strict=True))
    return types


@contextmanager
def _reading(
    path: Path,
    dialect: Dialect,
    types: Mapping[str, pa.DataType],
    passed: Handler | None = None,
    read: BytesRead | None = None,
) -> Iterator[LentReader]:
    def opened(stream: LentStream, handler: Handler | None) -> pa_csv.CSVStreamingReader:
        return _reader(stream, dialect, types, handler)

    with open_text(path, read) as stream, LentReader(stream, opened, passed) as reader:
        yield reader


def _reader(
    stream: LentStream,
    dialect: Dialect,
    types: Mapping[str, pa.DataType],
    passed: Handler | None,
) -> pa_csv.CSVStreamingReader:
    return pa_csv.open_csv(
        stream,
        # Only one thread counts rows, and messages need the row.
        pa_csv.ReadOptions(
            use_threads=False,
            block_size=BLOCK_BYTES,
            encoding=dialect.encoding,
            column_names=dialect.names,
            skip_rows=int(dialect.header and dialect.names is not None),
            autogenerate_column_names=not dialect.header and dialect.names is None,
        ),
        pa_csv.ParseOptions(
            delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=passed
        ),
        pa_csv.ConvertOptions(
            column_types=types,
            null_values=dialect.null_values,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _batches(
    path: Path,
    dialect: Dialect,
    types: Mapping[str, pa.DataType],
    names: list[str],
    met: Damage,
    read: BytesRead,
) -> Iterator[pa.RecordBatch]:
    """Batches; if damage is to be skipped, of text first, and without the rows that do not fit."""
    passed = RowsOfOtherWidth(path, met, header=dialect.header) if met.skip else None
    read_as = types if passed is None else dict.fromkeys(types, pa.string())
    try:
        with _reading(path, dialect, read_as, passed, read) as reader:
            rows = reader if passed is None else skip_misfits(path, reader, types, passed, met)
            for batch in rows:
                yield batch.rename_columns(names)
    except pa.ArrowException as problem:
        raise _explained(path, dialect, names, str(problem)) from problem


def _explained(path: Path, dialect: Dialect, names: list[str], message: str) -> Error:
    """Pyarrow's message with the line in the file and the column's name for its two numbers.

    Of rows that have too many cells or too few it knows the first: all of them are counted here.
    """
    row, column = _ROW.search(message), _COLUMN.search(message)
    where = str(path)
    if row and not column and " columns, got " in message:
        found = _misfits(path, dialect)
        if found.count > 1:
            return _many_misfits(path, found)
    if row:
        where += f", line {_line_of(path, int(row[1]))}"
    if column:
        where += f", column {names[int(column[1])]!r}"
    if "straddling" in message:
        message = f"a row is longer than {BLOCK_BYTES >> 20} MiB. Is a closing quote missing?"
    elif "conversion error" in message:
        message = (
            f"{message.rpartition(': CSV ')[2]}; the type is that of the first rows. "
            "Mend the value, or say null_values=... or text_columns=..."
        )
    else:
        message = message.partition(f"{row[0]}: " if row else "error: ")[2] or message
    return damage(where, message)


class _Misfits:
    """Told by Arrow of rows that have too many cells or too few: their number, and the first."""

    def __init__(self, *, holds_utf8: bool = False) -> None:
        self.holds_utf8 = holds_utf8  # texts of rows are UTF-8 that was taken for Latin-1
        self.count = 0
        self.first: list[tuple[int, str]] = []  # record from 1, what is wrong with it

    def __call__(self, row: Any) -> str:
        self.count += 1
        if len(self.first) < MOST_TOLD:
            problem = f"Expected {row.expected_columns} columns, got {row.actual_columns}"
            text = row.text
            if self.holds_utf8:
                text = text.encode("latin-1").decode(errors="replace")
            self.first.append((row.number, f"{problem}: {text!r:.60}"))
        return "skip"


def _misfits(path: Path, dialect: Dialect) -> _Misfits:
    """Those of the whole file, which is read once more, a block at a time."""
    is_utf8 = codecs.lookup(dialect.encoding).name == "utf-8"
    if is_utf8:
        # Arrow prints an error of its own for each row of other width that is not UTF-8.
        dialect = replace(dialect, encoding="latin-1")
    found = _Misfits(holds_utf8=is_utf8)
    try:
        with _reading(path, dialect, {}, _Misfits()) as reader:
            everything = dict.fromkeys(reader.schema.names, pa.string())
        with _reading(path, dialect, everything, found) as reader:
            for _ in reader:
                pass
    except pa.ArrowException:
        pass  # further on it is damaged otherwise; what was found so far is told
    return found


def _many_misfits(path: Path, found: _Misfits) -> Error:
    lines = _lines_of(path, [record for record, _ in found.first])
    told = "; ".join(f"line {at}: {what}" for at, (_, what) in zip(lines, found.first, strict=True))
    more = found.count - len(found.first)
    return damage(
        path,
        f"{found.count:,} rows have too many cells or too few. {told}"
        f"{f'; and {more:,} more' if more else ''}. damaged=skip passes over them.",
    )


def _line_of(path: Path, record: int) -> int:
    """The line, from 1, in which a record begins."""
    return _lines_of(path, [record])[0]


def _lines_of(path: Path, records: Sequence[int]) -> list[int]:
    """The lines, from 1, in which records begin. Quoted cells may hold line ends."""
    lines: dict[int, int] = {}
    seen, inside = 0, False
    with open_text(path) as stream:
        for number, line in enumerate(stream, 1):
            if not inside and line.strip(b"\r\n"):
                seen += 1
                if seen in records:
                    lines[seen] = number
                    if len(lines) == len(records):
                        break
            inside ^= line.count(b'"') % 2 == 1
    return [lines.get(record, record) for record in records]


def _guess_delimiter(path: Path) -> str:
    with open_text(path) as stream:
        line = re.sub(rb'"[^"]*"', b"", stream.readline(BLOCK_BYTES))
    return max(_DELIMITERS, key=lambda mark: line.count(mark.encode()))
