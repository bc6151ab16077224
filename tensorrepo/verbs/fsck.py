"""Check of a repository's data: what is missing or damaged, named as users know it.

Faults of objects are told by the column and rows, or by the tensors, that they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tensorrepo.formats.common.summaries import view_summary
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    open_dataset,
    page_bytes,
)
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.formats.views import open_view
from tensorrepo.repo.changes.fsck import ObjectFault, ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_check import damaged_records
from tensorrepo.repo.objects.envelope import Kind, ObjectLink

SHOWN_PARTS = 8


RECORD: Final = "log record"  # kind of a fault that is of no object


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one object, and what of an entry that concerns.

    Attributes:
        path: path of the entry; "" where a commit or its tree is damaged.
        commit: newest commit that needs the object.
        digest: digest of the object.
        kind: kind of the object, in words; `RECORD`: a record of the log, whose digests here are
            that of `repo.json`.
        problem: what is wrong with the object.
        parts: what of the entry is gone: columns with rows, or tensors.
    """

    path: str
    commit: Digest
    digest: Digest
    kind: str
    problem: str
    parts: tuple[str, ...]


def fsck(
    core: RepositoryCore,
    totals: ObjectTotals,
    *,
    path: str = "",
    tips: list[Digest] | None = None,
    deep: bool = False,
    outside: Outside | None = None,
    progress: Callable[[ObjectTotals], None] = lambda _: None,
) -> Iterator[Fault]:
    """Check what refs reach, and tell of each fault what it concerns.

    Args:
        core: the repository.
        totals: counters of what was looked at, which grow meanwhile.
        path: path of the one entry, or of the folder of entries, that is checked; "": all.
        tips: commits to begin with; None: those of all refs.
        deep: whether every byte is read, or sizes are compared.
        outside: what reads files in place.
        progress: callback that receives the counters now and then.
    """
    state = core.log.refresh().state
    if not path and tips is None:
        for gen, problem in damaged_records(core.log):
            origin = core.log.digest_of(0)
            yield Fault(f"log record {gen}", origin, origin, RECORD, problem, ())
    faults = check_objects(
        core.objects,
        state,
        totals,
        tips=tips,
        prefix=path,
        deep=deep,
        summarize=partial(_summary, core),
        progress=progress,
    )
    for fault in faults:
        kind = "object" if fault.kind is None else fault.kind.label
        parts = tuple(_parts(core, fault, outside))
        yield Fault(fault.path, fault.commit, fault.digest, kind, fault.problem, parts)


def _summary(core: RepositoryCore, entry: Entry) -> bytes:
    """The summary that storing the content of an entry would give."""
    if entry.kind is Kind.DATASET:
        return open_dataset(core.objects, entry.digest).entry.summary
    if entry.kind is Kind.MODEL:
        return open_model(core.objects, core.current(entry)).manifest.summary
    if entry.kind is Kind.VIEW:
        view = open_view(core.objects, entry.digest)
        size_bytes = core.objects.describe(entry.digest).bytes
        return view_summary(rows=view.rows, view_bytes=size_bytes, path=view.path)
    if entry.kind is Kind.BLOB:
        return file_entry(core.objects.describe(entry.digest)).summary
    return b""


def _parts(core: RepositoryCore, fault: ObjectFault, outside: Outside | None) -> Iterator[str]:
    """What of the entry a fault concerns; nothing where that cannot be told."""
    entry = fault.entry
    if entry is None or fault.kind not in (Kind.CHUNK, Kind.PACK):
        return
    try:
        if entry.kind is Kind.DATASET:
            yield from _rows(open_dataset(core.objects, entry.digest, outside), fault.digest)
        elif entry.kind is Kind.MODEL:
            yield from _tensors(core, entry)
    except (CorruptError, NotFoundError):  # of metadata, which is a fault of its own
        return


def _rows(dataset: StoredDataset, chunk: Digest) -> Iterator[str]:
    """Columns, and their rows, whose pages in a chunk cannot be read."""
    for column in dataset.schema.columns:
        index = column_index(dataset, column.name)
        pages = [page for page in _pages_in(index, chunk) if not _is_whole(dataset, index, page)]
        for first, last in _runs(pages):
            start, stop = int(index.first_row[first]), int(index.first_row[last + 1])
            yield f"column {column.name!r}, rows {start:,} to {stop:,}"


def _pages_in(index: ColumnIndex, chunk: Digest) -> list[int]:
    numbers = {
        number
        for number, each in enumerate(index.chunks)
        if isinstance(each, ObjectLink) and each.digest == chunk
    }
    pages = np.flatnonzero(np.isin(index.chunk, sorted(numbers)))
    tiled = [page for page, tiles in enumerate(index.tiles) if numbers & set(tiles)]
    return sorted({*pages.tolist(), *tiled})


def _is_whole(dataset: StoredDataset, index: ColumnIndex, page: int) -> bool:
    if index.tiles:
        return False  # its tiles lie in several chunks, of which this is one
    try:
        page_bytes(dataset, index, page)
    except (CorruptError, NotFoundError):
        return False
    return True


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of pages that follow each other."""
    numbers = np.array(pages, np.int64)
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1])


def _tensors(core: RepositoryCore, entry: Entry) -> Iterator[str]:
    """Tensors and files of a model that cannot be read."""
    yield from verify_model(open_model(core.objects, core.current(entry))).faults
