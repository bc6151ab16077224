"""Search for erased rows and columns in history, and the twins of all that holds some of them.

A row is found by a condition in any version of a dataset, also in one that only hides it by a
deletion, and is then erased by its id wherever that is: in other versions and branches, in copies,
in what stashes and syncs keep, in views. What repeats one of its texts goes with it: the query of a
view, a name of a class that only such rows had, a word of lineage or of a property.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.erase import (
    Erasure,
    FragmentTwins,
    PagePlace,
    erase,
    erased_rows,
    tainted_pages,
)
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.metadata.row_ids import ROW_ID, row_ids, runs_of_ids
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    open_dataset,
    page_reader,
    row_id_table,
    undeleted,
)
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.types import ClassLabel, Text
from tensorrepo.formats.dataset.selecting.select_rows import Where, choose_rows
from tensorrepo.formats.dataset.versions.fragment_content import (
    NAME_COST,
    SEEN_BYTES,
    FragmentNames,
    NamedFragment,
    SeenFragments,
    within,
)
from tensorrepo.formats.dataset.versions.match import RowRanges
from tensorrepo.formats.model.maintenance.erase import TensorSurvey
from tensorrepo.formats.model.maintenance.repack import RepackOptions
from tensorrepo.formats.search_index.stored_index import open_index, segments_with, write_index
from tensorrepo.formats.views import open_view, without_rows, write_view
from tensorrepo.repo.changes.purge import (
    HeldEntry,
    Progress,
    PurgeRecord,
    Twins,
    append_purge,
    held_entries,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.suggest import did_you_mean

MOST_TEXTS: Final = 100_000  # texts of erased rows that are looked for elsewhere
MOST_COPIED_BYTES: Final = 16 << 20  # of a version that is searched for equal rows; see `copies`
_STEP_ROWS: Final = 1 << 16  # that are read at once
_LEAST_CONTAINED: Final = 4  # characters of a text that is looked for within others
_LITERAL: Final = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"]|\"\")*)\"")


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """What is to be erased.

    Attributes:
        paths: full paths of the datasets, or of the models, that are named.
        where: condition on rows; None for none.
        ids: ids of rows, as texts.
        columns: names of columns.
        tensors: names of tensors.
    """

    paths: tuple[str, ...]
    where: Where | None = None
    ids: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.paths:
            raise InvalidInputError("name the datasets, or models, of which something is purged")
        rows = self.where is not None or bool(self.ids)
        if sum((rows, bool(self.columns), bool(self.tensors))) != 1:
            raise InvalidInputError(
                "say what is purged: rows (by a condition or by ids), columns or tensors, one at a "
                "time. Whole entries are given up by `tensorrepo rm` and `tensorrepo expire`"
            )


@dataclass(frozen=True, slots=True)
class RepeatedTexts:
    """Whether a text repeats one of `texts`: is it, has it as a literal of SQL, or contains it."""

    texts: frozenset[str] = frozenset()

    def __call__(self, text: str) -> bool:
        if not self.texts:
            return False
        if text in self.texts or any(
            found.replace("''", "'").replace('""', '"') in self.texts
            for pair in _LITERAL.findall(text)
            for found in pair
            if found
        ):
            return True
        return any(len(each) >= _LEAST_CONTAINED and each in text for each in self.texts)


@dataclass(eq=False)
class PurgeSurvey:
    """What one state of a repository holds of what is to be erased.

    Attributes:
        store: its objects.
        request: what is to be erased.
        held: every entry of its history.
        outside: reads files in place.
        purged: path of each dataset to the columns that were erased of it before, id to name.
    """

    store: ObjectStore
    request: PurgeRequest
    held: Sequence[HeldEntry]
    outside: Outside | None = None
    purged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _names: FragmentNames = field(default_factory=FragmentNames)

    @cached_property
    def datasets(self) -> Mapping[Digest, frozenset[str]]:
        """Every version of any dataset that history leads to, and the paths it has or had."""
        found: dict[Digest, set[str]] = {}
        for each in self.held:
            if each.entry.kind is Kind.DATASET:
                self._note(found, each.entry.digest, each.path)
            elif each.entry.kind is Kind.VIEW:
                self._note(found, open_view(self.store, each.entry.digest).dataset, "")
            elif each.entry.kind is Kind.SEARCH_INDEX:
                self._note(found, open_index(self.store, each.entry.digest).dataset, "")
        return {digest: frozenset(paths) for digest, paths in found.items()}

    def _note(self, found: dict[Digest, set[str]], digest: Digest, path: str) -> None:
        digest = self.store.living(digest)
        paths = found.setdefault(digest, set())
        if path in paths:
            return
        paths.add(path)
        for link in self.store.get(digest).links:
            if link.kind is Kind.DATASET:  # rows as a sync left them belong to the same data
                self._note(found, link.digest, path)

    @cached_property
    def named(self) -> tuple[Digest, ...]:
        """Versions of the datasets that were named."""
        known = {path for paths in self.datasets.values() for path in paths}
        for path in self.request.paths:
            if path not in known:
                raise NotFoundError(
                    f"no dataset {path!r} in any commit.{did_you_mean(path, sorted(known))}"
                )
        wanted = set(self.request.paths)
        return tuple(digest for digest, paths in self.datasets.items() if paths & wanted)

    @cached_property
    def erasure(self) -> Erasure:
        """What is erased, by ids."""
        if self.request.columns:
            return Erasure(columns=self._columns())
        ids = self._ids()
        found = Erasure(ids, repeats=RepeatedTexts(self._texts(ids)))
        return replace(found, classes=self._classes(found))

    @cached_property
    def tainted(self) -> frozenset[PagePlace]:
        """Where pages lie that hold some of it."""
        return frozenset(
            place
            for digest in self.datasets
            for place in tainted_pages(self.open(digest), self._erasure_of(digest))
        )

    @cached_property
    def versions(self) -> tuple[Digest, ...]:
        """Versions that hold some of it themselves."""
        return tuple(digest for digest in self.datasets if self._holds(digest))

    @cached_property
    def copies(self) -> Mapping[str, int]:
        """Paths of small datasets with rows that equal erased ones under ids of their own, to the
        greatest number in one leaf. Copies in chunks share those, and stop the purge.
        """
        erased = self._erased_hashes()
        found: dict[str, int] = {}
        seen = set[tuple[bytes, tuple[str, ...]]]()
        counts = LimitedCache[int](SEEN_BYTES)
        for digest, paths in self.datasets.items() if erased else ():
            dataset = undeleted(self.open(digest))
            if dataset.root.stored_bytes > MOST_COPIED_BYTES:
                continue
            known, first = erased_rows(dataset, self.erasure), 0
            for number, leaf in enumerate(dataset.root.leaves):
                key = (leaf.digest or leaf.payload, tuple(sorted(dataset.schema.visible.names)))
                if key not in seen:
                    seen.add(key)
                    fragments = self._names.of(dataset, number, first)
                    count = sum(_equal_rows(dataset, fragments, known, erased, counts))
                    for path in paths if count else ():
                        found[path] = max(found.get(path, 0), count)
                first += leaf.rows
        return dict(sorted(found.items()))

    def _erased_hashes(self) -> set[bytes]:
        erased, seen = set[bytes](), SeenFragments(self._names)
        for digest in self.datasets:
            dataset = undeleted(self.open(digest))
            if dataset.root.stored_bytes <= MOST_COPIED_BYTES and len(erased) < MOST_TEXTS:
                rows = erased_rows(dataset, Erasure(self.erasure.ids))
                erased.update(_hashes(dataset, within(rows, seen.fresh(dataset))))
        return erased

    def open(self, digest: Digest) -> StoredDataset:
        return open_dataset(self.store, digest, self.outside)

    def _erasure_of(self, digest: Digest) -> Erasure:
        """Rows have ids of their own everywhere; a column's may be that of another dataset's."""
        if self.erasure.columns and digest not in self.named:
            return Erasure()
        return self.erasure

    def _holds(self, digest: Digest) -> bool:
        dataset, erasure = self.open(digest), self._erasure_of(digest)
        known = {each for group in dataset.root.groups for each in group}
        return bool(len(erased_rows(dataset, erasure)) or known & erasure.columns)

    # -------------------------------------------------------------------- what is erased

    def _columns(self) -> frozenset[str]:
        found, names = set[str](), set[str]()
        for digest in self.named:
            schema = self.open(digest).schema
            names |= set(schema.visible.names)
            found |= {column.id for column in schema.columns if column.name in self.request.columns}
        for path in self.request.paths:  # so that a purge that was cut off is ended
            names |= set(self.purged.get(path, {}).values())
        for name in self.request.columns:
            if name not in names:
                paths, hint = ", ".join(self.request.paths), did_you_mean(name, sorted(names))
                raise NotFoundError(f"no version of {paths} has a column {name!r}.{hint}")
        return frozenset(found)

    def _ids(self) -> NDArray[np.void]:
        found = [row_ids(self.request.ids)] if self.request.ids else [np.zeros(0, ROW_ID)]
        refused: InvalidInputError | NotFoundError | None = None
        asked, seen = 0, SeenFragments(self._names)
        for digest in self.named if self.request.where is not None else ():
            dataset = undeleted(self.open(digest))
            fresh = seen.fresh(dataset)  # what a row is, decides whether it is meant
            try:
                rows = choose_rows(dataset, self.request.where, strict=False, within=fresh).rows
            except (InvalidInputError, NotFoundError) as error:
                refused = error  # this version has not all columns of the condition
                continue
            asked += 1
            found.append(row_id_table(dataset).of(rows))
        if refused is not None and not asked:
            raise refused
        return np.unique(np.concatenate(found))

    def _texts(self, ids: NDArray[np.void]) -> frozenset[str]:
        """Texts of erased rows, in all versions."""
        found = set[str]()
        for _, column, value in self._values(ids, lambda kind: isinstance(kind, Text | ClassLabel)):
            text = column.type.names[value] if isinstance(column.type, ClassLabel) else value
            if isinstance(column.type, Text) and text:
                found.add(text)
            if len(found) >= MOST_TEXTS:
                break
        return frozenset(found)

    def _classes(self, erasure: Erasure) -> Mapping[str, frozenset[str]]:
        """Names of classes that erased rows have and no other row of any version, by column."""
        found: dict[str, set[str]] = {}
        for _, column, value in self._values(
            erasure.ids, lambda kind: isinstance(kind, ClassLabel)
        ):
            found.setdefault(column.id, set()).add(column.type.names[value])
        seen = SeenFragments(self._names)
        for digest in self.datasets if found else ():
            dataset = self.open(digest)
            rows = _expanded(seen.fresh(dataset))
            rows = np.setdiff1d(rows, erased_rows(dataset, erasure), assume_unique=True)
            for column in dataset.schema.columns:
                names = found.get(column.id)
                if not names or not isinstance(column.type, ClassLabel):
                    continue
                codes = [at for at, name in enumerate(column.type.names) if name in names]
                for used in self._codes(dataset, column.name, rows, codes):
                    names.discard(column.type.names[used])
        return {name: frozenset(each) for name, each in found.items() if each}

    def _codes(
        self, dataset: StoredDataset, name: str, rows: NDArray[np.int64], codes: Sequence[int]
    ) -> Iterator[int]:
        """Which of `codes` some of `rows` have."""
        for start in range(0, len(rows), _STEP_ROWS):
            some = rows[start : start + _STEP_ROWS]
            (values,) = read_columns([page_reader(dataset, name)], some)
            column = dataset.schema.column(name)
            seen = {present_row(column, values, at) for at in range(values.rows)}
            yield from (code for code in codes if code in seen)

    def _values(
        self, ids: NDArray[np.void], wanted: Callable[[Any], bool]
    ) -> Iterator[tuple[Digest, Any, Any]]:
        """Version, column and value of each erased cell that is not null, of columns `wanted`."""
        seen = SeenFragments(self._names)
        for digest in self.datasets:
            dataset = undeleted(self.open(digest))
            rows = within(erased_rows(dataset, Erasure(ids)), seen.fresh(dataset))
            columns = [column for column in dataset.schema.columns if wanted(column.type)]
            if not len(rows):
                continue
            for column in columns:
                (values,) = read_columns([page_reader(dataset, column.name)], rows)
                for at in range(values.rows):
                    if (value := present_row(column, values, at)) is not None:
                        yield digest, column, value

    # -------------------------------------------------------------------- twins

    @cached_property
    def views(self) -> Mapping[Digest, str]:
        """Views that name erased rows or repeat an erased text, and their paths."""
        found = {}
        for each in self.held:
            if each.entry.kind is Kind.VIEW:
                view = open_view(self.store, each.entry.digest)
                less = without_rows(view, self.erasure.ids, view.sql)
                if less.rows < view.rows or self.erasure.repeats(view.sql):
                    found[self.store.living(each.entry.digest)] = each.path
        return found

    @cached_property
    def indexes(self) -> Mapping[Digest, str]:
        """Search indexes that know erased rows or are of an erased column, and their paths."""
        found, runs = {}, runs_of_ids(self.erasure.ids)
        for each in self.held:
            if each.entry.kind is Kind.SEARCH_INDEX:
                index = open_index(self.store, each.entry.digest)
                if index.column_id in self.erasure.columns or segments_with(index, runs):
                    found[self.store.living(each.entry.digest)] = each.path
        return found

    def rewrite(self, writer: ObjectWriter, progress: Callable[[str, int, int], None]) -> Twins:
        """Store the twins of all that holds some of it."""
        twins: dict[Digest, Digest] = {}
        where: dict[Digest, str] = {}
        made = FragmentTwins()
        for done, (digest, paths) in enumerate(self.datasets.items()):
            progress("rewriting versions", done, len(self.datasets))
            path = ", ".join(sorted(filter(None, paths)))
            erasure = self._erasure_of(digest)
            if erasure.is_empty:
                continue
            try:
                twin = erase(
                    writer, self.open(digest), erasure, self.tainted, made=made, names=self._names
                )
            except InvalidInputError as error:
                raise InvalidInputError(f"{path or digest[:12]}: {error}") from error
            if twin is not None and twin.digest != digest:
                twins[digest], where[digest] = twin.digest, path
        for digest, path in self.views.items():
            view = open_view(self.store, digest)
            sql = "" if self.erasure.repeats(view.sql) else view.sql
            less = without_rows(view, self.erasure.ids, sql)
            dataset = self.store.living(view.dataset)
            less = replace(less, dataset=twins.get(dataset, dataset))
            twins[digest], where[digest] = write_view(writer, less).digest, path
        for digest, path in self.indexes.items():
            index = open_index(self.store, digest)
            dataset = self.store.living(index.dataset)
            with_rows = segments_with(index, runs_of_ids(self.erasure.ids))
            if index.column_id in self.erasure.columns:
                with_rows = frozenset(range(len(index.segments)))
            kept = [each for at, each in enumerate(index.segments) if at not in with_rows]
            less_index = replace(index, dataset=twins.get(dataset, dataset), segments=tuple(kept))
            twins[digest], where[digest] = write_index(writer, less_index)[0].digest, path
        chunks = frozenset(chunk for chunk, _ in self.tainted)
        rows = runs_of_ids(self.erasure.ids).tobytes() if twins else b""
        return Twins(twins, where, chunks, rows, self._erased_columns())

    def _erased_columns(self) -> Mapping[str, Mapping[str, str]]:
        """What is told to those who ask for an erased column, by path: id to name."""
        names = {
            column.id: column.name
            for digest in (self.named if self.erasure.columns else ())
            for column in self.open(digest).schema.columns
            if column.id in self.erasure.columns
        }
        return dict.fromkeys(self.request.paths, names) if names else {}


def _expanded(ranges: Ints) -> Ints:
    """All rows in ranges, ascending."""
    return RowRanges(ranges[:, 0], ranges[:, 1]).expand()


def _equal_rows(
    dataset: StoredDataset,
    fragments: Sequence[NamedFragment],
    known: Ints,
    erased: AbstractSet[bytes],
    counts: LimitedCache[int],
) -> Iterator[int]:
    """How many rows of each fragment, but for `known`, have one of the hashes `erased`.

    `counts` remembers that by the names of fragments.
    """
    for each in fragments:
        count = counts.get(each.name)
        if count is None:
            rows = np.arange(each.first_row, each.first_row + each.rows)
            rows = np.setdiff1d(rows, known, assume_unique=True)
            count = sum(one in erased for one in _hashes(dataset, rows))
            counts.put(each.name, count, NAME_COST)
        yield count


def _hashes(dataset: StoredDataset, rows: Ints) -> Iterator[bytes]:
    for start in range(0, len(rows), _STEP_ROWS):
        yield from row_hashes(dataset, rows[start : start + _STEP_ROWS])


def row_hashes(dataset: StoredDataset, rows: NDArray[np.int64]) -> list[bytes]:
    """Of each of some physical rows one of its names and values, whatever its id."""
    columns = sorted(dataset.schema.visible.columns, key=lambda column: column.name)
    hashers = [blake3() for _ in rows]
    for column in columns if len(rows) else ():
        (values,) = read_columns([page_reader(dataset, column.name)], rows)
        for at, hasher in enumerate(hashers):
            value = present_row(column, values, at)
            if isinstance(column.type, ClassLabel) and value is not None:
                value = column.type.names[value]
            for part in (column.name.encode(), _cell(value)):
                hasher.update(len(part).to_bytes(8, "little") + part)
    return [hasher.digest() for hasher in hashers]


def _cell(value: Any) -> bytes:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
    return value if isinstance(value, bytes) else repr(value).encode()


def silent(_what: str, _done: int, _total: int) -> None:
    """Tell nobody."""


def survey_of(
    core: RepositoryCore, request: PurgeRequest, state: State, outside: Outside | None = None
) -> PurgeSurvey | TensorSurvey:
    """What a state holds of what is to be erased."""
    held = list(held_entries(core, state))
    if request.tensors:
        return TensorSurvey(core, request.paths, request.tensors, held, state.purged_columns)
    return PurgeSurvey(core.objects, request, held, outside, state.purged_columns)


def purge_history(
    core: RepositoryCore,
    request: PurgeRequest,
    *,
    actor: str,
    reason: str,
    outside: Outside | None = None,
    found: Callable[[PurgeSurvey | TensorSurvey], None] = lambda _: None,
    progress: Progress = silent,
) -> PurgeRecord | None:
    """Put twins in the place of all that holds what is to be erased; nothing is deleted yet.

    `found` is told of each state that is looked at, before anything of it is stored. Raises what
    `append_purge` does.
    """

    def rewrite(view: LogView, writer: ObjectWriter) -> Twins:
        survey = survey_of(core, request, view.state, outside)
        found(survey)
        if isinstance(survey, PurgeSurvey):
            return survey.rewrite(writer, progress)
        options = RepackOptions(actor, time.time_ns())
        return survey.rewrite(view, writer, options, time.thread_time, progress)

    return append_purge(core, rewrite, actor=actor, reason=reason, progress=progress)
