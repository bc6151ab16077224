"""Check of a repository's data: what is missing or damaged, named as users know it.

Faults of objects are told by the column and rows, or by the tensors, that they hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
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
from tensorrepo.formats.dataset.verification import verify_dataset
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.formats.search_index.check_values import value_faults
from tensorrepo.formats.search_index.segment_files import verify_files
from tensorrepo.formats.search_index.stored_index import open_index
from tensorrepo.formats.views import open_view
from tensorrepo.repo.backends.sql_log import MARK_KEY, SqlLogBackend
from tensorrepo.repo.changes.damage_reach import find_needs
from tensorrepo.repo.changes.fsck import (
    ContentChecks,
    ObjectFault,
    ObjectTotals,
    check_objects,
)
from tensorrepo.repo.changes.quarantine import QUARANTINE
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_check import LogCheck, is_log_key
from tensorrepo.repo.log.log_slots import COPY_KEY, IDENTITY_KEY
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tensorrepo.workspace.state import FOLDER

SHOWN_PARTS = 8
MAX_FAULTS: Final = 10_000  # that are told; more are counted
_SHOWN_DIGITS: Final = 12  # of a digest, in messages
_DIGEST: Final = re.compile(r"\b[0-9a-f]{12}\b")
_SEEN_CONTENTS: Final = 1 << 18  # pages and tensors that are remembered as decoded


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one object or one key of the log, and what of an entry that concerns.

    Attributes:
        path: path of the entry; "" where a commit or its tree is damaged; of the log its key.
        commit: a commit that needs the object; None where no commit does.
        digest: digest of the object; None where it is none.
        kind: what it is, in words.
        problem: what is wrong with it.
        parts: what of the entry is gone: columns with rows, or tensors.
        also: paths of other entries that need the object.
    """

    path: str
    commit: Digest | None
    digest: Digest | None
    kind: str
    problem: str
    parts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


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
    """Check a repository, and tell of each fault what it concerns, each thing once.

    Args:
        core: the repository.
        totals: counters of what was looked at, which grow meanwhile.
        path: path of the one entry, or of the folder of entries, that is checked; "": all.
        tips: commits to begin with; None: all roots, and the log.
        deep: whether every byte is read, pages and frames are decoded, or sizes are compared.
        outside: what reads files in place.
        progress: callback that receives the counters now and then.
    """
    whole = not path and tips is None
    if whole:
        check = LogCheck(core.log)
        for log_fault in check.faults():
            yield Fault(log_fault.key, None, None, log_fault.kind, log_fault.problem)
        yield from _copy_faults(core)
        # A log that cannot be opened still tells what was there before the damage.
        state = core.log.refresh().state if check.is_whole else check.state
    else:
        state = core.log.refresh().state
    decoding = _Decoding(core, outside)
    found = check_objects(
        core.objects,
        state,
        totals,
        tips=tips,
        prefix=path,
        deep=deep,
        contents=ContentChecks(partial(_summary, core), decoding.problems),
        is_known=partial(_is_known, core) if whole else None,
        collects=core.copy is None or core.copy.kind != "mirror",
        progress=progress,
    )
    faults = []
    for one in islice(_once(found), MAX_FAULTS):
        decoding.told.add(one.digest[:_SHOWN_DIGITS])
        faults.append(one)
    damaged = [fault.digest for fault in faults if fault.needed]
    needs = find_needs(core.objects, state, damaged, tips)
    for fault in faults:
        kind = "object" if fault.kind is None else fault.kind.label
        parts = tuple(_parts(core, fault, outside))
        paths = dict.fromkeys(need.path for need in needs.get(fault.digest, ()))
        path_of = fault.path or ("" if fault.commit else next(iter(paths), ""))
        also = tuple(each for each in paths if each != path_of)
        if path and not fault.path:
            also = ()
        yield Fault(path_of, fault.commit, fault.digest, kind, fault.problem, parts, also)


def _once(faults: Iterable[ObjectFault]) -> Iterator[ObjectFault]:
    seen: set[tuple[Digest, str, str]] = set()
    for fault in faults:
        key = (fault.digest, fault.path if fault.needed else "", fault.problem)
        if key not in seen:
            seen.add(key)
            yield fault


def _is_known(core: RepositoryCore, key: str) -> bool:
    """Whether a key beside the objects is one that a repository has."""
    beside = (QUARANTINE, f"{FOLDER}/")  # a workspace may lie in the folder of its repository
    if key in (IDENTITY_KEY, COPY_KEY) or key.startswith(beside):
        return True
    in_database = isinstance(core.backend, SqlLogBackend)
    return key == MARK_KEY if in_database else is_log_key(key)


def _copy_faults(core: RepositoryCore) -> Iterator[Fault]:
    """A mirror has the id of its origin."""
    copy = core.copy
    if copy is not None and copy.kind == "mirror" and copy.origin != core.id:
        problem = f"it names the origin {copy.origin}, and the log is that of {core.id}"
        yield Fault(COPY_KEY, None, None, "copy.json", problem)


class _Decoding:
    """Decodes all of an entry, what versions share only once.

    `told` are the digests of damaged objects, as messages show them: what follows from their damage
    is not told again.
    """

    def __init__(self, core: RepositoryCore, outside: Outside | None) -> None:
        self._core = core
        self._outside = outside
        self._seen: set[int] = set()
        self.told: set[str] = set()

    def problems(self, entry: Entry) -> Iterator[str]:
        """What is wrong with the content of an entry beyond the bytes of its objects."""
        for problem in self._decoded(entry):
            if self.told.isdisjoint(_DIGEST.findall(problem)):
                yield problem

    def _decoded(self, entry: Entry) -> Iterator[str]:
        core = self._core
        try:
            if entry.kind is Kind.DATASET:
                dataset = open_dataset(core.objects, entry.digest, self._outside)
                yield from verify_dataset(dataset, self._is_new)
            elif entry.kind is Kind.MODEL:
                model = open_model(core.objects, core.current(entry))
                yield from verify_model(model, is_new=self._is_new).faults
            elif entry.kind is Kind.SEARCH_INDEX:
                index = open_index(core.objects, entry.digest)
                verify_files(core.objects, index)
                yield from value_faults(core.objects, index, self._outside)
        except (CorruptError, NotFoundError) as error:
            yield str(error)

    def _is_new(self, name: tuple[object, ...]) -> bool:
        number = hash(name)
        if number in self._seen:
            return False
        if len(self._seen) >= _SEEN_CONTENTS:
            self._seen.clear()
        self._seen.add(number)
        return True


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
    if entry.kind is Kind.SEARCH_INDEX:
        return open_index(core.objects, entry.digest).summary
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
