"""Folders of texts and of sounds, a file a row, one folder for each class.

    pos/1.txt neg/7.txt                      columns text, label, file
    train/dog/1.wav test/cat/2.wav           columns audio, label, split, file

What folders mean is what it is for images: the first one names the class, below a split's. Files
are told by their names and kept as they are: a text as text, a sound as its bytes, which nothing
here decodes. A single text file is a row for each of its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnBatch,
    Schema,
    Text,
)
from tensorrepo.formats.exchange.base import (
    Candidate,
    Damage,
    OpenedSource,
    columns_of,
    grouped,
    origin_of,
    source_files,
    split_note,
)
from tensorrepo.formats.exchange.images.folder import FolderPlan, make_plan, read_classes
from tensorrepo.formats.exchange.images.walk import CLASSES_FILE
from tensorrepo.formats.exchange.tables.csv import is_text, open_text
from tensorrepo.repo.errors import InvalidInputError

TEXT_SUFFIXES = (".txt", ".text")
AUDIO_SUFFIXES = (
    ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".aif", ".aiff",
)  # fmt: skip
MAX_LINE_BYTES = 64 << 20
_ROW_BYTES = 256  # what a row costs beside its value
# What gives the values of a file as bytes, and what makes the column's values of them.
FileValues = tuple[Callable[[Path], Iterator[bytes]], Callable[[bytes], Any]]


def read_text(
    path: Path,
    *,
    by: str | None = None,
    split: str | None = None,
    encoding: str = "utf-8",
    damaged: bool = False,
) -> OpenedSource:
    """A text file, or the text files of a folder.

    Args:
        path: file or folder.
        by: what a row is: "line" or "file"; None: a line of a file, a file of a folder.
        split: only this top folder.
        encoding: character encoding, by Python's name for it.
        damaged: pass over files that may not be read, and files and lines that are not in that
            encoding.

    Raises:
        InvalidInputError: no text files, or one that is not in that encoding.
    """
    unit = by or ("file" if path.is_dir() else "line")
    if unit not in ("line", "file"):
        raise InvalidInputError(f"by is line or file, got {by!r}")

    def decode(data: bytes) -> str:
        try:
            return data.decode(encoding)
        except LookupError as problem:
            raise InvalidInputError(f"encoding {encoding!r} is unknown") from problem
        except UnicodeDecodeError as problem:
            said = f"is not {encoding} text. Say which encoding it is: encoding=latin-1"
            raise InvalidInputError(said) from problem

    values = _lines if unit == "line" else _whole
    files = _files(path, TEXT_SUFFIXES, "text files")
    return _read(path, "text", files, Column("text", Text()), (values, decode), split, damaged)


def read_audio(path: Path, *, split: str | None = None) -> OpenedSource:
    """The sounds of a folder, as the bytes that they are.

    Args:
        path: the folder.
        split: only this top folder.

    Raises:
        InvalidInputError: no sounds.
    """
    if not path.is_dir():
        raise damage(path, "is a single sound; read the folder that it is in")
    files = _files(path, AUDIO_SUFFIXES, "sounds")
    return _read(path, "audio", files, Column("audio", Bytes()), (_whole, bytes), split, False)


def matches_text(candidate: Candidate) -> bool:
    """A text file, or a folder of nothing else but a list of classes and what explains it."""
    if not candidate.is_folder:
        return candidate.path.name.lower().endswith(TEXT_SUFFIXES) and is_text(candidate.head)
    names = [name.name.lower() for name in candidate.names]
    explains = [name.startswith("readme") or name == CLASSES_FILE for name in names]
    texts = [name.endswith(TEXT_SUFFIXES) for name in names]
    all_told = all(text or aside for text, aside in zip(texts, explains, strict=True))
    return all_told and any(text and not aside for text, aside in zip(texts, explains, strict=True))


def matches_audio(candidate: Candidate) -> bool:
    return candidate.is_folder and any(
        name.name.lower().endswith(AUDIO_SUFFIXES) for name in candidate.names
    )


def _files(path: Path, suffixes: tuple[str, ...], what: str) -> list[Path]:
    found = source_files(path, lambda name: name.endswith(suffixes), what)
    listed = [file for file in found if file != path / CLASSES_FILE]
    if not listed:
        raise damage(path, f"holds no {what}")
    return listed


def _read(
    path: Path,
    name: str,
    files: Sequence[Path],
    column: Column,
    values: FileValues,
    split: str | None,
    damaged: bool,
) -> OpenedSource:
    """Rows of files: what their values are, and what their folders say."""
    folders = {file: _folders(path, file) for file in files}
    plan = make_plan(set(folders.values()), read_classes(path), "folder")
    if split is not None:
        folders = {file: parts for file, parts in folders.items() if parts[:1] == (split,)}
        if split not in plan.splits or not folders:
            there = ", ".join(map(repr, plan.splits)) or "none"
            raise damage(path, f"holds no split {split!r}; there are {there}")
    schema = _schema(path, column, plan, folders.values(), one_split=split is not None)
    met = Damage(skip=damaged)
    one_value = values[0] is _whole
    notes = []
    if "split" in schema:
        counts = {each: sum(p[0] == each for p in folders.values()) for each in plan.splits}
        notes.append(split_note(counts, "files"))
    return OpenedSource(
        schema=schema,
        rows=len(folders) if one_value and not damaged else None,
        batches=_batches(path, schema, plan, folders, values, met),
        origin=origin_of(path, name, list(folders)),
        notes=tuple(notes),
        damage=met,
        key=("file",) if one_value and path.is_dir() else (),
    )


def _folders(path: Path, file: Path) -> tuple[str, ...]:
    return file.relative_to(path).parts[:-1] if path.is_dir() else ()


def _schema(
    path: Path,
    column: Column,
    plan: FolderPlan,
    folders: Collection[tuple[str, ...]],
    *,
    one_split: bool,
) -> Schema:
    columns = [column]
    labelled = [plan.label(parts) is not None for parts in folders]
    if any(labelled):
        columns.append(Column("label", ClassLabel(plan.names), nullable=not all(labelled)))
    if len(plan.splits) > 1 and not one_split:
        columns.append(Column("split", ClassLabel(plan.splits)))
    if path.is_dir():
        columns.append(Column("file", Text()))
    return Schema(tuple(columns))


def _batches(
    path: Path,
    schema: Schema,
    plan: FolderPlan,
    folders: dict[Path, tuple[str, ...]],
    values: FileValues,
    met: Damage,
) -> Iterator[ColumnBatch]:
    walk, decode = values
    (first, *_) = schema.names

    def rows() -> Iterator[tuple[dict[str, Any], int]]:
        for file, parts in folders.items():
            relative = file.relative_to(path).as_posix() if path.is_dir() else file.name
            beside = {"label": plan.label(parts), "split": plan.split(parts), "file": relative}
            with met.opening(file, "file"):
                for number, data in enumerate(walk(file)):
                    try:
                        value = decode(data)
                    except InvalidInputError as problem:
                        met.meet(file, number, damage(file, str(problem)))
                        continue
                    yield {first: value, **beside}, len(data) + _ROW_BYTES

    for batch in grouped(rows()):
        yield columns_of(batch, schema.names)


def _whole(file: Path) -> Iterator[bytes]:
    yield file.read_bytes()


def _lines(file: Path) -> Iterator[bytes]:
    with open_text(file) as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            yield line.rstrip(b"\r\n")
