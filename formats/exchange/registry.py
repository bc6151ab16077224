"""Recognition of foreign formats, and dispatch to their readers and writers.

Content decides where it can; the suffix decides for text, which has no mark of its own. What is not
recognised is refused with the list of what would be.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.arrow import in_usual_form
from tensorrepo.formats.dataset.schema.schema import Column, Schema, TypeLike
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    Format,
    FormatOption,
    ObjectFormat,
    OpenedSource,
    read_ignore,
)
from tensorrepo.formats.exchange.checkpoints.recognition import model_format
from tensorrepo.formats.exchange.column_choice import EXCLUDE, ColumnChoice, without
from tensorrepo.formats.exchange.formats import FORMATS, OBJECTS
from tensorrepo.formats.exchange.images.folder import images_suit, is_image, reads_back
from tensorrepo.formats.exchange.output import ExportTable
from tensorrepo.formats.exchange.tables.writers import csv_keeps
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.suggest import did_you_mean

HEAD_BYTES = 1028  # the longest header of an IDX file
_TEXT = frozenset({"csv", "jsonl", "json", "text"})
_PICKLES = frozenset({".pkl", ".pickle", ".joblib"})
_MAX_NAMES = 2000  # files of a folder that are looked at to recognise it
_BY_NAME = {known.name: known for known in FORMATS}


def read(path: Path | str, format: str | None = None, **options: object) -> OpenedSource:  # noqa: A002  # the SDK's word
    """Open a foreign file or folder as rows.

    Args:
        path: a local file or folder.
        format: its name, when content and suffix shall not decide.
        options: options of the format; values may be the texts of a command line.

    Raises:
        NotFoundError: no such path.
        InvalidInputError: empty, not recognised, damaged, a model, or an unknown option.
        PermissionDenied: the system refuses.
        UnsupportedError: a URL, or content that no column type holds.
    """
    local = _local(path)
    if format is not None:
        chosen = find_format(format)
        _candidate(local)  # the same errors for a path that is not there
    else:
        chosen = recognise(local)
    known = chosen.read_options
    own = any(option.name == EXCLUDE.name for option in known)
    parsed = _parsed(chosen, known if own else (*known, EXCLUDE), options)
    left_out = () if own else parsed.pop(EXCLUDE.name, ())
    return without(chosen.read(local, **parsed), left_out)


def read_object(
    given: object,
    schema: Schema | None = None,
    types: Mapping[str, TypeLike | Column] | None = None,
    **options: object,
) -> OpenedSource:
    """The rows of an object of Python: a table, columns, rows, a dataset of another library.

    Args:
        given: the object.
        schema: the columns that the rows are for, when they are known.
        types: types of columns whose inferred type is not what is meant, by name.
        options: as the object's kind has them.

    Raises:
        InvalidInputError: an object of another kind, an unknown option, or samples that do not fit.
    """
    known = _object_format(given)
    parsed = _parsed(known, known.read_options, options)
    names, exclude = parsed.pop("columns", None), parsed.pop("exclude", ())
    choice = ColumnChoice(names, exclude, types or {})
    return known.read(given, schema=schema, choice=choice, **parsed)


def _object_format(given: object) -> ObjectFormat:
    """The kind of an object. Raises InvalidInputError: none that is known."""
    for known in OBJECTS:
        if known.matches(given):
            return known
    hint = ""
    if hasattr(given, "collect"):
        hint = " Of a lazy frame, give what its collect() answers."
    elif hasattr(given, "__array__"):
        hint = " Give an array a name: {'x': array}."
    raise InvalidInputError(
        f"cannot read {type(given).__name__}: expected a path, "
        f"{', '.join(known.title for known in OBJECTS)}.{hint}"
    )


def export(
    table: ExportTable,
    path: Path | str,
    format: str | None = None,  # noqa: A002  # the SDK's word
    *,
    overwrite: bool = False,
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **options: object,
) -> Path:
    """Write a dataset into a foreign file or folder, whole or not at all.

    Args:
        table: a dataset.
        path: what to make; its folder must exist.
        format: its name; by default the one that the suffix of `path` names.
        overwrite: replace what is there.
        columns: only these, in this order.
        progress: callback that receives the rows written so far, and those in all.
        options: options of the format.

    Returns:
        The path written.

    Raises:
        InvalidInputError: `path` exists, an unknown format or option, or a column or row that the
            format cannot hold; it is named.
    """
    local = _local(path)
    chosen = find_format(format) if format is not None else _with_suffix(local)
    written = [known.name for known in FORMATS if known.write]
    if chosen is None:
        raise InvalidInputError(
            f"{local}: the name says no format. Say one: format={' or '.join(written)}"
        )
    if chosen.write is None:
        raise UnsupportedError(
            f"format {chosen.name} is read only; written are {', '.join(written)}"
        )
    parsed = _parsed(chosen, chosen.write_options, options)
    if isinstance(columns, str):  # as a command line gives them
        columns = columns.split(",")
    schema = table.schema.select(columns)
    shown = _Watched(table, schema if chosen.keeps_forms else schema.without_forms(), progress)
    chosen.write(shown, local, overwrite=overwrite, **parsed)
    return local


def takes_option(given: object, format: str | None, name: str) -> bool:  # noqa: A002  # as above
    """Whether the reader of a path or an object has an option of that name."""
    chosen: Format | ObjectFormat
    if not isinstance(given, str | Path):
        chosen = _object_format(given)
    else:
        chosen = find_format(format) if format is not None else recognise(_local(given))
    return any(option.name == name for option in chosen.read_options)


def recognise(path: Path) -> Format:
    """The format of a file or folder, by its content and its name.

    Raises:
        NotFoundError: no such path.
        InvalidInputError: empty, several formats at once, a model, or nothing known.
    """
    candidate = _candidate(path)
    found = [known for known in FORMATS if known.matches(candidate)]
    covered = {name for known in found for name in known.covers}
    found = [known for known in found if known.name not in covered]
    # Text beside other data describes it: labels.csv in a folder of images.
    found = [known for known in found if known.name not in _TEXT] or found
    if not found and not candidate.is_folder and (named := _with_suffix(path)) is not None:
        return named  # damaged, most likely: its reader says what is wrong
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(known.name for known in found)
        raise damage(path, f"holds {names}. Say which to read: format={found[0].name}")
    raise _unrecognised(candidate)


def find_format(name: str) -> Format:
    """The format of this name. Raises InvalidInputError, which names near ones."""
    if name not in _BY_NAME:
        hint = did_you_mean(name, _BY_NAME.keys())
        raise InvalidInputError(f"unknown format {name!r}; known are {', '.join(_BY_NAME)}.{hint}")
    return _BY_NAME[name]


def default_format(given: ExportTable | Schema, source: str = "") -> str:
    """The format in which `checkout` writes a dataset, so that reading it gives the same rows.

    A folder of images when that keeps every column, number and the order; CSV when the rows came
    from CSV and it keeps every value; else Parquet. A schema alone cannot tell the order, nor
    whether file names are unique: give the dataset.

    Args:
        given: the dataset.
        source: name of the format that its rows were read from, if any.
    """
    if images_suit(given) if isinstance(given, Schema) else reads_back(given):
        return "images"
    schema = given if isinstance(given, Schema) else given.schema
    return "csv" if source == "csv" and csv_keeps(schema) else "parquet"


def can_write(name: str) -> bool:
    """Whether a dataset can be written in the format of this name."""
    return name in _BY_NAME and _BY_NAME[name].write is not None


def file_name(name: str, format: str) -> str:  # noqa: A002  # the SDK's word
    """What a dataset called `name` is called when it is written in `format`."""
    suffixes = find_format(format).suffixes
    return name + (suffixes[0] if suffixes else "")


def parse_options(given: Iterable[str]) -> dict[str, object]:
    """Options as a command line gives them: ``["delimiter=;", "header=false"]``."""
    options: dict[str, object] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"an option is KEY=VALUE, got {item!r}")
        options[name.replace("-", "_")] = value
    return options


@dataclass(frozen=True, slots=True)
class _Watched:
    """Some columns of a table; tells how many of its rows were asked for."""

    table: ExportTable
    schema: Schema
    progress: Callable[[int, int], None]
    done: list[int] = field(default_factory=lambda: [0])

    @property
    def properties(self) -> Mapping[str, Any]:
        return self.table.properties

    def __len__(self) -> int:
        return len(self.table)

    def to_batches(
        self, columns: Sequence[str] | None = None, *, max_bytes: int = BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        wanted = self.schema.names if columns is None else columns
        for given in self.table.to_batches(list(wanted), max_bytes=max_bytes):
            batch = _reformed(given, self.schema.select(wanted))
            yield batch
            self.done[0] = min(self.done[0] + batch.num_rows, len(self.table))
            self.progress(self.done[0], len(self.table))


def _reformed(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The rows in the Arrow types of a schema."""
    arrow = schema.to_arrow()
    if batch.schema.types == arrow.types:
        return batch
    arrays = list(map(in_usual_form, schema.columns, batch.columns))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _local(path: Path | str) -> Path:
    if "://" in str(path):
        raise UnsupportedError(f"{path}: only local files are read and written; copy it first")
    return Path(path)


def _parsed(
    chosen: Format | ObjectFormat, known: Iterable[FormatOption], options: Mapping[str, object]
) -> dict[str, Any]:
    """Options as the format takes them; those given as None are left to their defaults."""
    by_name = {option.name: option for option in known}
    parsed = {}
    for name, value in options.items():
        if name not in by_name:
            there = ", ".join(by_name) or "none"
            raise InvalidInputError(f"format {chosen.name} has no option {name!r}; it has {there}")
        if value is not None:
            try:
                parsed[name] = by_name[name].parse(value)
            except InvalidInputError as problem:
                raise InvalidInputError(f"option {name!r}: {problem}") from problem
    return parsed


def _with_suffix(path: Path) -> Format | None:
    name = path.name.lower()
    return next((known for known in FORMATS if name.endswith(known.suffixes or "\0")), None)


def _candidate(path: Path) -> Candidate:
    """What there is to see of a path before a format is chosen."""
    with refusals(path, "file"):
        status = path.stat()
        if path.is_dir():
            names = tuple(islice(_names(path), _MAX_NAMES))
            if not names:
                raise damage(path, "is a folder without files (hidden and ignored ones left out)")
            return Candidate(path, b"", names, is_folder=True)
        if not path.is_file():
            raise damage(path, "is neither a file nor a folder")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    gzipped = head.startswith(b"\x1f\x8b")
    return Candidate(
        path, _inner_head(path) if gzipped else head, bytes=status.st_size, gzipped=gzipped
    )


def _names(folder: Path) -> Iterator[PurePath]:
    """The files below `folder`, hidden and ignored ones left out."""
    ignore = read_ignore(folder)
    for parent, folders, files in os.walk(folder):
        here = PurePath(parent).relative_to(folder)
        folders[:] = [
            name
            for name in sorted(folders)
            if not name.startswith(".")
            and not ignore.leaves_out((here / name).as_posix(), is_folder=True)
        ]
        for name in sorted(files):
            path = here / name
            left_out = ignore.rules and ignore.leaves_out(path.as_posix(), is_folder=False)
            if not name.startswith(".") and not left_out:
                yield path


def _inner_head(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""  # the format that the suffix names says what is wrong


def _unrecognised(candidate: Candidate) -> InvalidInputError:
    path = candidate.path
    if is_image(candidate):
        return damage(path, "is a single image; read the folder that it is in")
    if not candidate.is_folder:
        if not candidate.bytes:
            return damage(path, "is empty")
        if (model := model_format(path)) is not None:
            return damage(path, f"is a model ({model}). Add it with --model NAME instead")
        if candidate.head.startswith(b"\x80") or path.suffix in _PICKLES:
            return damage(path, "looks like a pickle, which can run any code and is never read")
    return damage(
        path,
        "is in no format that is known here. Say which it is, --format NAME, in Python format=; "
        "the guide to foreign formats and `tensorrepo add --help` list them",
    )
