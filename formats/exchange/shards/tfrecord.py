"""Read TFRecord files of `tf.train.Example` records, one file or a folder of shards.

The first examples tell the columns (`tfrecordexample`); after that files are read once, front to
back, every checksum checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.damage import damage
from tensorrepo.formats.dataset.columns.schema import Schema
from tensorrepo.formats.exchange.base import Candidate, Origin, Reading, file_bytes
from tensorrepo.formats.exchange.shards.records import (
    SAMPLES,
    Record,
    batches_of,
    choose,
    record_files,
)
from tensorrepo.formats.exchange.shards.tfrecordexample import (
    WORDS,
    Example,
    FeatureColumn,
    infer_columns,
    parse_example,
    value_of,
)
from tensorrepo.formats.exchange.shards.tfrecordfile import NAME, begins_with_record, walk_records
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import Batch

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz", ".tfrecord.zlib")
_SAMPLE_BYTES = 64 << 20  # of examples that are held to infer types from


def read_tfrecord(
    path: Path,
    *,
    columns: tuple[str, ...] | None = None,
    samples: int = SAMPLES,
    types: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Reading:
    """One file, or all those of a folder in the order of their names.

    Args:
        path: file or folder; gzip and zlib are told by content.
        columns: only these features.
        samples: from how many examples types are inferred.
        types: what features are, one of bytes, text, image, json, scalar, ragged.
        shapes: of features that are tensors of more than one dimension.

    Raises:
        InvalidInputError: damaged files, records that are no examples, or features that change.
        UnsupportedError: the library for checksums is not installed.
    """
    files = record_files(path, _is_called_so, "TFRecord files: *.tfrecord, *.tfrecord-00000-of-9")
    first = _first_examples(files, samples)
    if not any(first):
        raise damage(path, "holds no examples with features")
    if columns is not None:
        choose(path, list(dict.fromkeys(name for each in first for name in each)), columns)
        first = [{name: each[name] for name in columns if name in each} for each in first]
    found = infer_columns(first, types or {}, shapes or {}, str(path))
    chosen = list(found) if columns is None else list(columns)
    stored = sum(map(file_bytes, files))
    return Reading(
        schema=Schema(tuple(found[name].column for name in chosen)),
        rows=None,
        bytes=stored,
        batches=_batches(files, {name: found[name] for name in chosen}, columns is None),
        origin=Origin(str(path), "tfrecord", len(files), stored),
    )


def matches_tfrecord(candidate: Candidate) -> bool:
    """A file that begins with a record, or a folder of files called so."""
    if candidate.is_folder:
        return any(
            _is_called_so(name.name.lower()) and not name.name.startswith(".")
            for name in candidate.names
        )
    return begins_with_record(candidate.head)


def parse_types(value: object) -> dict[str, str]:
    """What features are: a mapping, or text such as ``caption:text,thumb:bytes``."""
    types = {str(name): str(word) for name, word in _pairs(value).items()}
    for name, word in types.items():
        if word not in WORDS:
            raise InvalidInputError(f"{name!r} cannot be {word!r}, only {', '.join(WORDS)}")
    return types


def parse_shapes(value: object) -> dict[str, tuple[int, ...]]:
    """Shapes of features: a mapping to sizes, or text such as ``image:28x28x1``."""
    shapes = {}
    for name, shape in _pairs(value).items():
        sizes = list(shape) if isinstance(shape, list | tuple) else str(shape).split("x")
        if not all(str(size).isdigit() and len(str(size)) < 10 for size in sizes):
            raise InvalidInputError(f"{name!r} needs a shape such as 28x28x1, got {shape!r}")
        shapes[str(name)] = tuple(int(size) for size in sizes)
    return shapes


def _pairs(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    parts = [part.strip().rpartition(":") for part in str(value).split(",")]
    if not all(name for name, _, _ in parts):
        raise InvalidInputError(f"expected name:what, separated by commas, got {value!r}")
    return {name: what for name, _, what in parts}


def _is_called_so(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def _first_examples(files: Sequence[Path], samples: int) -> list[Example]:
    first: list[Example] = []
    held = 0
    for file in files:
        for number, record in walk_records(file):
            first.append(parse_example(record, f"{file}, record {number}"))
            held += len(record)
            if len(first) >= samples or held >= _SAMPLE_BYTES:
                return first
    return first


def _batches(
    files: Iterable[Path], columns: Mapping[str, FeatureColumn], every: bool
) -> Iterator[Batch]:
    names = [part.column.name for part in columns.values()]
    return batches_of((record for file in files for record in _rows(file, columns, every)), names)


def _rows(file: Path, columns: Mapping[str, FeatureColumn], every: bool) -> Iterator[Record]:
    """The examples of one file; with `every`, a feature that is no column is refused."""
    for number, record in walk_records(file):
        where = f"{file}, record {number}"
        example = parse_example(record, where)
        if every and (new := example.keys() - columns.keys()):
            raise damage(
                where,
                f"has a new feature {min(new)!r}. Look at more examples, samples=N, or choose "
                "features: columns=...",
            )
        values = {
            name: value_of(part, example.get(name), f"{where}, feature {name!r}")
            for name, part in columns.items()
        }
        # A number of one byte takes eight in memory.
        arrays = sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
        yield Record(values, len(record) + arrays)
