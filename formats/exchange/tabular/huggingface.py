"""Read datasets of Hugging Face's `datasets`: a folder of `save_to_disk`, or the object itself.

    dataset_info.json state.json data-00000-of-00001.arrow              one split
    dataset_dict.json train/... test/...                                several: a column split

Folders are read without that library: they are Arrow streams and JSON. Pictures must lie in them;
of an object, those that are named by a path are read from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.dataset.columns.schema import ClassLabel, Column, Schema
from tensorrepo.formats.exchange.base import BATCH_BYTES, Candidate, Origin, Reading, file_bytes
from tensorrepo.formats.exchange.child import TableFile
from tensorrepo.formats.exchange.imagery.annotated import read_text
from tensorrepo.formats.exchange.imagery.jsonscan import decode_record
from tensorrepo.formats.exchange.tabular.arrow import open_arrow
from tensorrepo.formats.exchange.tabular.huggingface_features import adapt_feature
from tensorrepo.formats.exchange.tabular.tables import (
    ARROW_ERRORS,
    Adapted,
    features_of,
    naming_file,
    table_batches,
)
from tensorrepo.formats.exchange.tabular.torchdata import read_samples
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import Batch

STATE, INFO, DICT = "state.json", "dataset_info.json", "dataset_dict.json"
_MAX_JSON_BYTES = 64 << 20
_MAX_ROWS = 4096


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename={"files": "_data_files", "indices": "_indices_data_files"}):
    files: list[_File]
    indices: list[_File] | None = None


class _Info(msgspec.Struct):
    features: dict[str, Any] | None = None


class _Dict(msgspec.Struct):
    splits: list[str]


@dataclass(frozen=True, slots=True)
class _Split:
    """One folder with a state: its files in order, opened, and its features."""

    files: Mapping[Path, TableFile]
    schema: pa.Schema
    features: Mapping[str, Any]


def read_huggingface(
    path: Path, *, split: str | None = None, columns: tuple[str, ...] | None = None
) -> Reading:
    """A folder that `save_to_disk` wrote.

    Args:
        path: the folder of a dataset, or of a dict of them.
        split: only this one of a dict; else column `split` tells them apart.
        columns: only these.

    Raises:
        InvalidInputError: a damaged folder, splits that differ, a picture that is only named.
        NotFoundError: no such split or column.
        UnsupportedError: a feature that no column type holds.
    """
    with refusals(path, "dataset", *ARROW_ERRORS):
        return _read(path, _splits(path, split), columns)


def _read(path: Path, splits: Sequence[str], columns: tuple[str, ...] | None) -> Reading:
    opened = {name: _open_split(path / name) for name in splits}
    first = opened[splits[0]]
    for name, other in opened.items():
        if other.schema.names != first.schema.names or other.schema.types != first.schema.types:
            raise damage(path, f"splits {splits[0]!r} and {name!r} differ. Say one: split=...")
    with naming_file(path):
        adapted = _adapt(first.schema, first.features, columns, follow=False)
        schema = _with_split(Schema(tuple(item.column for item in adapted)), splits)
    files = [file for one in opened.values() for file in one.files]
    stored = sum(map(file_bytes, files))
    return Reading(
        schema=schema,
        rows=None,
        bytes=stored,
        batches=_batches(list(opened.values()), adapted, tells_split=len(splits) > 1),
        origin=Origin(str(path), "huggingface", len(files), stored),
    )


def read_huggingface_object(
    given: Any,
    *,
    columns: tuple[str, ...] | None = None,
    schema: Schema | None = None,
) -> Reading:
    """A `Dataset` or `IterableDataset` in memory, on disk or streamed.

    Args:
        given: the object; of a `DatasetDict` choose one: ``given["train"]``.
        columns: only these.
        schema: the columns, when they are known.
    """
    if isinstance(given, Mapping):
        raise InvalidInputError(f"is several datasets, choose one: {', '.join(map(str, given))}")
    if given.features is None:  # a stream whose columns nobody knows yet
        return read_samples(given, schema=schema)
    features = given.features.to_dict()
    arrow = given.features.arrow_schema
    adapted = _adapt(arrow, features, columns, follow=True)
    what = type(given).__name__
    return Reading(
        schema=Schema(tuple(item.column for item in adapted)),
        rows=len(given) if hasattr(given, "__len__") else None,
        bytes=int(getattr(given, "size_in_bytes", None) or 0),
        batches=_object_batches(given, adapted, what),
        origin=Origin(what, "huggingface", 0, 0),
    )


def matches_huggingface(candidate: Candidate) -> bool:
    path = candidate.path
    return candidate.is_folder and (
        (path / DICT).is_file() or ((path / STATE).is_file() and (path / INFO).is_file())
    )


def is_huggingface_object(given: object) -> bool:
    """Whether an object is one of the library's datasets, told without importing it."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(given).__mro__}
    own = {"datasets.Dataset", "datasets.IterableDataset"}
    return bool(kinds & (own | {"datasets.DatasetDict", "datasets.IterableDatasetDict"}))


def _splits(path: Path, split: str | None) -> list[str]:
    """The folders to read, relative to `path`; "" is `path` itself."""
    if not (path / DICT).is_file():
        if split is not None:
            raise NotFoundError(f"{path} is one dataset without splits")
        return ["."]
    listed = _json(path / DICT, _Dict).splits
    for name in listed:
        _check_name(path / DICT, name)
    if split is not None and split not in listed:
        raise NotFoundError(f"{path} has no split {split!r}; there are {', '.join(listed)}")
    if not listed:
        raise damage(path, "lists no splits")
    return [split] if split is not None else listed


def _open_split(folder: Path) -> _Split:
    state = _json(folder / STATE, _State)
    if state.indices:
        raise UnsupportedError(
            f"{folder} is a choice of rows in the form of an old version of datasets. Save it again"
        )
    if not state.files:
        raise damage(folder / STATE, "names no files")
    for file in state.files:
        _check_name(folder / STATE, file.filename)
    opened = {folder / file.filename: open_arrow(folder / file.filename) for file in state.files}
    schema = next(iter(opened.values())).schema
    for path, table in opened.items():
        if table.schema.names != schema.names or table.schema.types != schema.types:
            raise damage(path, "has other columns than the first file")
    info = _json(folder / INFO, _Info) if (folder / INFO).is_file() else _Info()
    return _Split(opened, schema, info.features or features_of(schema))


def _json(path: Path, kind: type[Any]) -> Any:
    with refusals(path, "JSON file"):
        text = read_text(path, "JSON file", _MAX_JSON_BYTES)
    return decode_record(path, text.encode(), kind)


def _check_name(where: Path, name: str) -> None:
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise damage(where, f"names {name!r}, which is no file or folder beside it")


def _adapt(
    arrow: pa.Schema,
    features: Mapping[str, Any],
    columns: tuple[str, ...] | None,
    *,
    follow: bool,
) -> list[Adapted]:
    chosen = arrow.names if columns is None else columns
    for name in chosen:
        if arrow.names.count(name) != 1:
            there = ", ".join(map(repr, arrow.names))
            raise NotFoundError(f"holds no column {name!r} of its own; there are {there}")
    return [adapt_feature(arrow.field(name), features.get(name), follow=follow) for name in chosen]


def _with_split(schema: Schema, splits: Sequence[str]) -> Schema:
    if len(splits) < 2:
        return schema
    if "split" in schema:
        raise InvalidInputError("has a column 'split' besides its splits. Say one: split=...")
    return Schema((*schema.columns, Column("split", ClassLabel(tuple(splits)))))


def _batches(
    opened: Sequence[_Split], adapted: Sequence[Adapted], *, tells_split: bool
) -> Iterator[Batch]:
    for number, split in enumerate(opened):
        for batch in table_batches(split.files, adapted):
            rows = len(next(iter(batch.values())))
            yield {**batch, "split": [number] * rows} if tells_split else batch


def _object_batches(given: Any, adapted: Sequence[Adapted], what: str) -> Iterator[Batch]:
    """Rows as the library gives them, in steps of about `BATCH_BYTES`."""

    def tables() -> Iterator[pa.RecordBatch]:
        for table in given.with_format("arrow").iter(batch_size=_step(given)):
            yield from table.combine_chunks().to_batches()

    names = [item.column.name for item in adapted]
    opened = TableFile(pa.schema([]), None, tables)
    with refusals(what, "dataset", *ARROW_ERRORS):
        for batch in table_batches({Path(what): opened}, adapted):
            yield {name: batch[name] for name in names}


def _step(given: Any) -> int:
    """How many rows to ask for at once."""
    size = getattr(getattr(given, "data", None), "nbytes", None)
    rows = len(given) if hasattr(given, "__len__") else 0
    if not size or not rows:
        return 64
    return int(max(1, min(_MAX_ROWS, BATCH_BYTES * rows // size)))
