"""Import, export and adoption in place of foreign files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tensorrepo import this_machine
from tensorrepo.connect import Machine, is_url
from tensorrepo.datasets.dataset import Dataset
from tensorrepo.formats.dataset.external.outside import parse_address
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import OnMisfit
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    Json,
    Schema,
    Text,
    TypeLike,
    as_type,
)
from tensorrepo.formats.dataset.unique_key import check_declared_key
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.base import OpenedSource, source_files
from tensorrepo.formats.exchange.column_choice import typed, without
from tensorrepo.formats.exchange.in_place.adopt import Adopted
from tensorrepo.formats.exchange.in_place.adopt import adopt as adopt_urls
from tensorrepo.formats.exchange.remote import RemotePlace, RemoteSource
from tensorrepo.models.model import Model
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.verbs.seen_objects import SeenObjects, options_digest
from tensorrepo.verbs.stage import Stage

SUFFIXES = (".parquet", ".pq", ".tar", ".npy", ".safetensors")


@dataclass(frozen=True, slots=True)
class AdoptionRequest:
    """What is to be adopted, and how; see `tensorrepo.formats.exchange.in_place.adopt.adopt`."""

    paths: tuple[str, ...]
    format: str | None = None
    columns: tuple[str, ...] | None = None
    hashed: bool | None = None


def adopt(
    stage: Stage,
    path: str,
    request: AdoptionRequest,
    machine: Machine,
    *,
    append: bool = False,
    options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Adopted:
    """Stage a dataset whose rows stay in files that the caller names.

    Naming a file allows to read it now; reading it later needs a permission of its own.

    Args:
        stage: next commit.
        path: whole path of the dataset.
        request: files; folders of this machine stand for the files in them, by name.
        machine: where relative paths are, and credentials of stores.
        append: put the rows behind those of the dataset, if there is one.
        options: storage options of the URLs.
        progress: callback that receives the bytes looked at so far, and those in all.
    """
    entry = stage.entry(path) if append else None
    urls = [url for text in request.paths for url in _expanded(text, machine)]
    prefixes = {url: dict(options or {}) if is_url(url) else {} for url in urls}
    outside = AllowedOutside(prefixes, environment=machine.environment)
    base = None if entry is None else open_dataset(stage.objects, entry.digest)
    adopted = adopt_urls(
        stage.objects,
        urls,
        outside,
        format=request.format,
        columns=request.columns,
        base=base,
        hashed=request.hashed,
        progress=progress,
    )
    made = open_dataset(stage.objects, adopted.link.digest, outside)
    if base is not None:
        check_declared_key(made, base)
    stage.stage(path, made.entry)
    return adopted


def _expanded(path: str, machine: Machine) -> Iterator[str]:
    if is_url(path):
        yield path
        return
    source = machine.path(Path(path).expanduser())
    if not source.exists():
        raise NotFoundError(f"there is no {source} to adopt")
    what = f"files that end in {', '.join(SUFFIXES)}"
    for file in source_files(source, lambda name: name.endswith(SUFFIXES), what):
        yield str(file.absolute())


def is_remote(text: str) -> bool:
    """Whether `text` is a URL of another machine; of this one, paths are read where they are."""
    return "://" in text and not text.lower().startswith("file:")


def local_path(text: str | Path) -> Path:
    """A path of this machine, which may be given as ``file:///path``."""
    is_file_url = isinstance(text, str) and text.lower().startswith("file:")
    return Path(parse_address(str(text)).key if is_file_url else text)


def remote_place(url: str, machine: Machine) -> RemotePlace:
    """What lies behind a URL, for somebody on this machine; nothing is asked of it yet."""
    return RemotePlace(url, environment=machine.environment)


def fetch_source(
    place: RemotePlace,
    machine: Machine,
    progress: Callable[[int], None] = lambda _: None,
    seen: SeenObjects | None = None,
) -> RemoteSource:
    """A copy of what lies behind a URL, in the cache folder of this machine.

    Pictures that a sync has seen already come from the repository.
    """
    folder = machine.cache_folder / "fetched"
    if seen is None:
        return place.fetch(folder, progress)
    return place.fetch(folder, progress, seen.contents)


def read(
    what: str | Path | object,
    format: str | None = None,  # noqa: A002
    **options: Any,
) -> OpenedSource:
    """Open a foreign file or folder, or an object of Python, as rows, for `append`.

    Args:
        what: a path or URL (images in class folders, Parquet, CSV, npy, npz, IDX, ...); a data
            frame of pandas or polars, an Arrow table or reader, a relation of DuckDB; a mapping of
            columns; an iterable of rows; a dataset of torch, of Hugging Face, or of a repository.
            What a URL names is copied to this machine's cache folder while its rows are read.
        format: format of a path; None: told by suffix and content.
        options: options of that format, as the guide to foreign formats lists them; ``columns``
            and ``exclude`` choose columns of every one.
    """
    return open_source(what, format, options=options)


def open_source(
    what: object,
    format: str | None = None,  # noqa: A002
    *,
    schema: Schema | None = None,
    types: Mapping[str, TypeLike | Column] | None = None,
    options: Mapping[str, Any] | None = None,
    on_error: OnMisfit = "raise",
    seen: SeenObjects | None = None,
) -> OpenedSource:
    """Whatever users call data, as rows.

    Args:
        what: as for `read`, or what `read` opened.
        format: as for `read`.
        schema: columns that the rows are for, when they are known.
        types: types of columns whose inferred type is not what is meant, by name.
        options: as for `read`; those given as None or empty are left to their defaults.
        on_error: fate of rows that do not fit; unless it is "raise", those that a reader cannot
            read, or that are not like its first ones, are passed over.
        seen: what a URL was when it was last synced.
    """
    chosen = {name: value for name, value in (options or {}).items() if value not in (None, ())}
    if isinstance(what, OpenedSource):
        return typed(without(what, tuple(chosen.get("exclude", ()))), types or {})
    if isinstance(what, Dataset):
        what = pa.RecordBatchReader.from_batches(
            what.schema.without_ids().to_arrow(), what.to_batches()
        )
    kept = kept_columns(_declared(types or {}) if schema is None else schema.visible.columns)
    if isinstance(what, str) and is_remote(what):
        machine = this_machine.machine()
        remote = fetch_source(remote_place(what, machine), machine, seen=seen)
        with remote.named():
            given = _options_for(remote.path, format, chosen, kept, on_error)
            reading = registry.read(remote.path, format, **given)
            told = options_digest(format, chosen, on_error)
            return typed(remote.described(reading, told), types or {})
    if isinstance(what, (str, Path)):
        place = local_path(what)
        given = _options_for(place, format, chosen, kept, on_error)
        return typed(registry.read(place, format, **given), types or {})
    if format is not None:
        raise InvalidInputError(f"format {format!r} is of paths; {type(what).__name__} is none")
    given = _options_for(what, None, chosen, {}, on_error)
    return registry.read_object(what, schema, types, **given)


class SourceProgress(Protocol):
    """Whatever receives bytes done so far, and those in all where that is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


def of_source(reading: OpenedSource, progress: SourceProgress) -> Callable[[int, int], None]:
    """What receives rows and their bytes in memory, and tells of the bytes of the source.

    Those are known where the source says how many rows it has, or how much of its files was read:
    what a row takes in memory is more than in a compressed file. Else bytes in memory are told,
    without a total.
    """
    rows_in_all, read = reading.rows, reading.bytes_read
    if read is not None:
        return lambda _rows, _bytes: progress(min(read(), reading.bytes), reading.bytes)
    if not rows_in_all:
        return lambda _, done: progress(done, None)
    return lambda rows, _: progress(
        reading.bytes * min(rows, rows_in_all) // rows_in_all, reading.bytes
    )


def open_to_sync(
    objects: ObjectSource,
    dataset: StoredDataset,
    what: str | Path,
    *,
    on_error: OnMisfit,
    always: bool,
) -> OpenedSource | SeenObjects:
    """A path or URL that a dataset is to be synced with.

    Unless `always`, nothing is read of a URL that is still what it was: then that is told.
    """
    seen = None
    if isinstance(what, str) and is_remote(what):
        place = remote_place(what, this_machine.machine())
        seen = SeenObjects.of(objects, dataset, place.shown, dataset.outside)
        told = options_digest(None, {}, on_error)
        if seen is not None and not always and seen.is_still(place, told):
            return seen
    return open_source(what, schema=dataset.schema, on_error=on_error, seen=seen)


def _options_for(
    what: object,
    format_name: str | None,
    chosen: Mapping[str, Any],
    kept: Mapping[str, list[str]],
    on_error: OnMisfit,
) -> dict[str, Any]:
    """Options of a reader, with those that the rows' fate and the known columns ask for."""
    found = dict(chosen)
    if on_error != "raise" and registry.takes_option(what, format_name, "damaged"):
        found.setdefault("damaged", "skip")
    for name, columns in kept.items():
        if columns and registry.takes_option(what, format_name, name):
            found.setdefault(name, columns)
    return found


def _declared(types: Mapping[str, TypeLike | Column]) -> list[Column]:
    return [
        given if isinstance(given, Column) else Column(name, as_type(given))
        for name, given in types.items()
    ]


def kept_columns(columns: Sequence[Column]) -> dict[str, list[str]]:
    """Options of readers that tell types by values, where the types are known.

    "007" is no number where text is wanted, and an object no struct where JSON is.
    """
    return {
        option: [column.name for column in columns if isinstance(column.type, kind)]
        for option, kind in (("text_columns", Text), ("json_columns", Json))
    }


def export(
    what: Dataset | Model,
    path: str | Path,
    format: str | None = None,  # noqa: A002
    *,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Write a dataset or a model in a foreign format, whole or not at all.

    Args:
        what: as `Repository.dataset` and `Repository.model` give it.
        path: what to make; its folder must exist.
        format: its format; None: told by the suffix of `path`.
        overwrite: replace what is there.
        options: options of that format.

    Returns:
        `path`.

    Raises:
        InvalidInputError: `path` exists, or the format cannot hold what is to be written.
    """
    target = Path(path)
    if isinstance(what, Dataset):
        return registry.export(what.stored, target, format, overwrite=overwrite, **options)
    return what.export(target, format, overwrite=overwrite, **options)
