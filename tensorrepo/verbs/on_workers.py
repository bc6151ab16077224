"""Rows that workers of a Ray cluster store for a stage: of files and batches, or written anew."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tensorrepo.context import Context
from tensorrepo.formats.common.ray_tasks import ordered_calls
from tensorrepo.formats.dataset.compact import plan_compaction
from tensorrepo.formats.dataset.compact_parts import join_compacted, row_pieces
from tensorrepo.formats.dataset.parts import RowsPart, append_parts
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.formats.exchange.tables.files import table_files
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.verbs.part_values import Part
from tensorrepo.verbs.part_writes import CompactionTask, RowsTask

BATCHES: Final = 8  # of 8 MiB that readers give, to one worker at a time
_FILE_FORMATS: Final = ("parquet", "arrow", "csv", "jsonl")  # each file of a folder has rows alone
Piece = Path | list[InputBatch]


def check_shared(context: Context) -> None:
    """Raises InvalidInputError where workers cannot open the repository."""
    if context.url.startswith("memory:"):
        raise InvalidInputError(
            f"{context.url} lies in the memory of this process, and executor='ray' would open it "
            "in others: use a folder that all machines see, or a store"
        )


def pieces_of(reading: OpenedSource, source: Path, more: Iterable[Path] = ()) -> Iterator[Piece]:
    """What workers store, in the order of the rows.

    Files that are tables of their own are opened by workers, where they lie; what else there is
    this process reads, and workers store.
    """
    others = list(more)
    files = _files(reading, source)
    if others or len(files) > 1:
        # Workers are in folders of their own.
        yield from (path.absolute() for path in [*(files or [source]), *others])
        return
    held: list[InputBatch] = []
    for batch in reading.batches:
        held.append(batch)
        if len(held) == BATCHES:
            yield held
            held = []
    if held:
        yield held


def _files(reading: OpenedSource, source: Path) -> list[Path]:
    """The files of a folder of tables; none where a row is not of one file alone."""
    name = reading.origin.format
    if name not in _FILE_FORMATS or not source.is_dir():
        return []
    files = table_files(source, registry.find_format(name).suffixes)
    partitioned = any("=" in part for file in files for part in file.relative_to(source).parts[:-1])
    return [] if partitioned or len(files) != reading.origin.files else files


def store_on_workers(
    writer: ObjectWriter,
    context: Context,
    pieces: Iterable[Piece],
    schema: Schema,
    base: StoredDataset | None,
    *,
    codec: str,
    format: str | None = None,  # noqa: A002  # the word of `read`
    options: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda _rows, _bytes: None,
) -> tuple[ObjectLink, list[str]]:
    """Store rows behind a dataset, or as a new one, by tasks of the cluster.

    Args:
        writer: the stage's store.
        context: repository, which workers open.
        pieces: what `pieces_of` gives.
        schema: columns of the rows.
        base: the dataset; its objects are durable. None: a new one.
        codec: codec of the pages.
        format: format of files.
        options: options of that format.
        progress: receives rows and bytes stored so far.

    Returns:
        Link of the root, and names of leases to be closed when it is staged.
    """
    check_shared(context)
    key, like = f"add/{secrets.token_hex(8)}", None if base is None else base.digest
    task = RowsTask(context, schema, like, codec, format, options or {})
    keyed = ((f"{key}/{number:08d}", piece) for number, piece in enumerate(pieces))
    parts: list[Part] = []
    for told in ordered_calls(keyed, task):
        parts.append(Part.from_json(told))
        progress(sum(each.rows for each in parts), sum(each.stored_bytes for each in parts))
    onto = base or open_dataset(writer, write_dataset(writer, schema, ()).digest)
    rows = [RowsPart(each.key, each.root, each.rows) for each in parts]
    digest, _ = append_parts(writer, onto, rows)
    return writer.describe(digest), [each.lease for each in parts]


def compact_on_workers(
    writer: ObjectWriter,
    context: Context,
    dataset: StoredDataset,
    *,
    target_bytes: int,
    budget_bytes: int,
    everything: bool,
    progress: Callable[[int, int], None] = lambda _rows, _bytes: None,
) -> tuple[Digest, list[str]]:
    """Compact a dataset, as `compact_dataset` does, by tasks of the cluster.

    Returns:
        Digest of the root, that of `dataset` where nothing is worn; and names of leases to be
        closed when it is staged.
    """
    check_shared(context)
    plan = plan_compaction(
        dataset, target_bytes=target_bytes, budget_bytes=budget_bytes, everything=everything
    )
    if not plan.fragments:
        return dataset.digest, []
    writer.flush()  # workers read what this transaction stored
    key = f"compact/{secrets.token_hex(8)}"
    task = CompactionTask(context, dataset.digest, key, budget_bytes)
    places = list(row_pieces(dataset, plan))
    parts: list[Part] = []
    for told in ordered_calls(places, task):
        parts.append(Part.from_json(told))
        progress(sum(each.rows for each in parts), sum(each.stored_bytes for each in parts))
    made = [RowsPart(each.key, each.root, each.rows) for each in parts]
    link = join_compacted(writer, dataset, plan, list(zip(places, made, strict=True)))
    return link.digest, [each.lease for each in parts]
