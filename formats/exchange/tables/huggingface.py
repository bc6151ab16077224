"""Datasets of Hugging Face: folders and objects read, folders written.

    dataset_info.json state.json data-00000-of-00001.arrow              one split
    dataset_dict.json train/... test/...                                several: a column split

Folders are read without that library: they are Arrow streams and JSON. Pictures must lie in them;
of an object, those that are named by a path are read from there.

Written are Arrow streams of about half a gigabyte, whose metadata and `dataset_info.json` say the
features.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.json import decode_json
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Column, ColumnBatch, Schema
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    ImportOrigin,
    OpenedSource,
    origin_of,
    streamed_groups,
    with_split,
)
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS, TableFile
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column, typed
from tensorrepo.formats.exchange.images.labels import read_text
from tensorrepo.formats.exchange.output import ExportTable, new_folder
from tensorrepo.formats.exchange.tables.files import (
    Adapted,
    features_of,
    naming_file,
    table_batches,
    unnamed_index,
)
from tensorrepo.formats.exchange.tables.huggingface_features import adapt_feature
from tensorrepo.formats.exchange.tables.huggingface_rows import feature_table
from tensorrepo.formats.exchange.tables.samples import read_samples
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

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
    path: Path,
    *,
    split: str | None = None,
    columns: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
) -> OpenedSource:
    """A folder that `save_to_disk` wrote.

    Args:
        path: the folder of a dataset, or of a dict of them.
        split: only this one of a dict; else column `split` tells them apart.
        columns: only these.
        exclude: all but these.

    Raises:
        InvalidInputError: a damaged folder, splits that differ, a picture that is only named.
        NotFoundError: no such split or column.
        UnsupportedError: a feature that no column type holds.
    """
    with refusals(path, "dataset", *ARROW_ERRORS):
        return _read(path, _splits(path, split), ColumnChoice(columns, exclude))


def _read(path: Path, splits: Sequence[str], choice: ColumnChoice) -> OpenedSource:
    opened = {name: _open_split(path / name) for name in splits}
    first = opened[splits[0]]
    for name, other in opened.items():
        if other.schema.names != first.schema.names or other.schema.types != first.schema.types:
            raise damage(path, f"splits {splits[0]!r} and {name!r} differ. Say one: split=...")
    with naming_file(path):
        adapted = _adapt(first.schema, first.features, choice, follow=False)
        schema = with_split_column(Schema(tuple(item.column for item in adapted)), splits)
    files = [file for one in opened.values() for file in one.files]
    return OpenedSource(
        schema=schema,
        rows=None,
        batches=with_split([table_batches(each.files, adapted) for each in opened.values()]),
        origin=origin_of(path, "huggingface", files),
    )


def read_huggingface_object(
    given: Any,
    *,
    choice: ColumnChoice,
    schema: Schema | None = None,
) -> OpenedSource:
    """A `Dataset` or `IterableDataset` in memory, on disk or streamed.

    Args:
        given: the object; of a `DatasetDict` choose one: ``given["train"]``.
        choice: columns that are wanted, and their types.
        schema: the columns, when they are known.
    """
    if isinstance(given, Mapping):
        raise InvalidInputError(f"is several datasets, choose one: {', '.join(map(str, given))}")
    if given.features is None:  # a stream whose columns nobody knows yet
        return read_samples(given, schema=schema, choice=choice)
    features = given.features.to_dict()
    arrow = given.features.arrow_schema
    adapted = _adapt(arrow, features, choice, follow=True)
    what = type(given).__name__
    source = OpenedSource(
        schema=Schema(tuple(item.column for item in adapted)),
        rows=len(given) if hasattr(given, "__len__") else None,
        batches=_object_batches(given, adapted, what),
        origin=ImportOrigin(
            what, "huggingface", 0, int(getattr(given, "size_in_bytes", None) or 0)
        ),
    )
    return typed(source, choice.types)


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
    """The folders to read, relative to `path`; "." is `path` itself."""
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
    opened = open_files("arrow", [folder / file.filename for file in state.files])
    schema = next(iter(opened.values())).schema
    for path, table in opened.items():
        if table.schema.names != schema.names or table.schema.types != schema.types:
            raise damage(path, "has other columns than the first file")
    info = _json(folder / INFO, _Info) if (folder / INFO).is_file() else _Info()
    return _Split(opened, schema, info.features or features_of(schema))


def _json(path: Path, kind: type[Any]) -> Any:
    with refusals(path, "JSON file"):
        text = read_text(path, "JSON file", _MAX_JSON_BYTES)
    return decode_json(path, text.encode(), kind)


def _check_name(where: Path, name: str) -> None:
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise damage(where, f"names {name!r}, which is no file or folder beside it")


def _adapt(
    arrow: pa.Schema, features: Mapping[str, Any], choice: ColumnChoice, *, follow: bool
) -> list[Adapted]:
    if twice := [name for name, count in Counter(arrow.names).items() if count > 1]:
        raise InvalidInputError(f"has two columns called {' and '.join(map(repr, twice))}")
    return each_column(
        choice.of(arrow.names, unnamed_index(arrow)),
        lambda name: adapt_feature(arrow.field(name), features.get(name), follow=follow),
    )


def with_split_column(schema: Schema, splits: Sequence[str]) -> Schema:
    if len(splits) < 2:
        return schema
    if "split" in schema:
        raise InvalidInputError("has a column 'split' besides its splits. Say one: split=...")
    return Schema((*schema.columns, Column("split", ClassLabel(tuple(splits)))))


def _object_batches(given: Any, adapted: Sequence[Adapted], what: str) -> Iterator[ColumnBatch]:
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


SHARD_BYTES = 500_000_000


def write_huggingface(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
    """A folder that `datasets.load_from_disk` opens. Raises as `feature_table` does."""
    made = feature_table(table.schema)
    forms, schema = made.forms, made.schema
    with new_folder(path, overwrite=overwrite) as folder:
        names, told = [], xxhash.xxh3_64(json.dumps(forms).encode())
        batches = map(made.convert, table.to_batches(max_bytes=BATCH_BYTES))
        # `datasets` does not open a stream without any batch.
        first = next(batches, pa.RecordBatch.from_pylist([], schema))
        sized = ((batch, batch.nbytes) for batch in chain([first], batches))
        for number, shard in enumerate(streamed_groups(sized, SHARD_BYTES)):
            names.append(_write_shard(folder, number, shard, schema, told))
        count = len(names)
        final = [f"data-{at:05d}-of-{count:05d}.arrow" for at in range(count)]
        for name, wanted in zip(names, final, strict=True):
            (folder / name).rename(folder / wanted)
        _write_json(folder / INFO, {"citation": "", "description": "", "features": forms})
        _write_json(folder / STATE, _state(final, told.hexdigest()))


def _state(files: list[str], fingerprint: str) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _write_json(path: Path, form: dict[str, Any]) -> None:
    path.write_text(json.dumps(form, indent=2), "utf-8")


def _write_shard(
    folder: Path,
    number: int,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    told: xxhash.xxh3_64,
) -> str:
    name = f"{number}.part"
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            told.update(f"{number} {batch.num_rows} {batch.nbytes}".encode())
    return name
