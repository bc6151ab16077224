"""Search indexes on a stage: made of a column, brought up to date, found beside a dataset."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tensorrepo.connect import Machine, cache_limit
from tensorrepo.context import Context
from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.search_index.build import IndexReport, build_index
from tensorrepo.formats.search_index.indexed_values import candidates_by_indexes
from tensorrepo.formats.search_index.kinds import (
    BTREE,
    Family,
    IndexRequest,
    family_of,
    index_request,
    usual_kind,
)
from tensorrepo.formats.search_index.lance_segment import Progress
from tensorrepo.formats.search_index.opened_index import IndexedVersion, OpenedIndex, OpenedIndexes
from tensorrepo.formats.search_index.paths import VALUES, index_folder
from tensorrepo.formats.search_index.segment_files import IndexFolders
from tensorrepo.formats.search_index.stored_index import open_index, write_index
from tensorrepo.query.sql.repository_tables import Used
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, PurgedError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import is_path
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.verbs.stage import Stage

_FOLDER: Final = "indexes"  # of the user's caches


def index_path(dataset: str, schema: Schema, column: Column, family: Family) -> str:
    """Path of the index of a column: ``indexes/photos/embedding``, ``indexes/photos/year.values``.

    So a column of text has room for an index of its words and one of its values. A column whose
    name is no name of a path, differs from another's in case alone, or ends as the path of an index
    of values does, is called by its id.
    """
    below, ends = index_folder(dataset), VALUES if family == "values" else ""
    alike = sum(each.name.lower() == column.name.lower() for each in schema.columns)
    named = below + column.name
    is_taken = alike > 1 or column.name.lower().endswith(VALUES)
    if is_taken or "/" in column.name or not is_path(named + ends):
        return f"{below}id-{column.id}{ends}"
    return named + ends


def opened_indexes(machine: Machine) -> OpenedIndexes:
    """What this process has open of indexes, below this user's caches."""
    return _opened(machine.cache_folder / _FOLDER, cache_limit(machine))


@functools.cache
def _opened(root: Path, limit_bytes: int) -> OpenedIndexes:
    return OpenedIndexes(IndexFolders(root, limit_bytes))


def create_index(
    stage: Stage,
    machine: Machine,
    outside: Outside,
    path: str,
    name: str,
    kind: str | None,
    metric: str | None,
    options: Mapping[str, Any],
    progress: Progress,
) -> tuple[str, IndexReport]:
    """Stage an index of a column, or one that was there, brought up to date.

    Args:
        stage: next commit, which has the dataset.
        machine: where caches are.
        outside: files that may be read in place.
        path: path of the dataset.
        name: column.
        kind: kind of the index; None: that of the one which is there, else the usual one.
        metric: distance of vectors; None: likewise.
        options: options of the kind; none: likewise.
        progress: receives how much of a stage is done, of how much, and the stage.

    Returns:
        Path of the index, and what was done.

    Raises:
        NotFoundError: no such dataset or column.
        InvalidInputError: a kind, a metric or options that do not fit the column.
    """
    entry = stage.entry(path)
    if entry is None or entry.kind is not Kind.DATASET:
        raise NotFoundError(f"no {path} to make an index of: make the dataset first")
    dataset = open_dataset(stage.objects, entry.digest, outside)
    column = dataset.schema.column(name)
    asked = kind or _kind_there(stage, path, dataset.schema, column)
    place = index_path(path, dataset.schema, column, family_of(asked))
    there = stage.entry(place)
    before, damaged = None, ""
    if there is not None and there.kind is Kind.SEARCH_INDEX:
        try:
            before = open_index(stage.objects, there.digest)
        except (CorruptError, NotFoundError) as error:
            damaged = f"it is damaged: {error}"
    if before is not None and before.column_id == column.id and kind is None:
        asked, metric = before.kind, metric or before.metric or None
        options = options or before.options
    request: IndexRequest = index_request(column, asked, metric, options)
    indexes = opened_indexes(machine)
    index, report = build_index(
        stage.objects, indexes, dataset, path, name, request, before, progress
    )
    report = msgspec.structs.replace(report, anew=report.anew or damaged)
    if there is None or damaged or (before is not None and not index.equals(before)):
        stage.stage(place, write_index(stage.objects, index)[1])
    return place, report


def _kind_there(stage: Stage, path: str, schema: Schema, column: Column) -> str:
    """Kind of the one index that a column has, else the usual one."""
    usual = usual_kind(column)
    has_words = stage.entry(index_path(path, schema, column, family_of(usual))) is not None
    has_values = stage.entry(index_path(path, schema, column, "values")) is not None
    return BTREE if has_values and not has_words else usual


@dataclass(frozen=True, slots=True)
class IndexSearch:
    """What there is to find rows by, beside a dataset.

    Attributes:
        opened: index of a column; None: none that can be asked.
        why: reason why there is none, in words.
    """

    opened: OpenedIndex | None
    why: str = "no index asked"


def index_beside(
    context: Context, commit: Digest, path: str, whole: StoredDataset, name: str, metric: str = ""
) -> IndexSearch:
    """The index of a column, to be searched for rows of a dataset.

    Args:
        context: repository that has both.
        commit: commit whose index is asked.
        path: path of the dataset in it.
        whole: all rows of the dataset.
        name: column.
        metric: distance that is asked for; ``""`` for words.
    """
    family: Family = "vectors" if metric else "words"
    tree, indexes = context.resolve(commit).commit.tree, opened_indexes(context.machine)
    found = _beside(context, indexes, tree, path, whole, name, family)
    if found.opened is not None and found.opened.index.metric != metric:
        return IndexSearch(None, f"the index is by {found.opened.index.metric}")
    return found


def value_index_beside(
    context: Context, commit: Digest, path: str, whole: StoredDataset, name: str
) -> OpenedIndex | None:
    """The index of the values of a column; None: there is none. See `index_beside`."""
    # Asked by every condition on many rows: no log and no setting is read, for blocks of values
    # lie in no folder.
    indexes = _opened(context.machine.cache_folder / _FOLDER, 0)
    tree = read_commit(context.core.objects, commit).tree
    return _beside(context, indexes, tree, path, whole, name, "values").opened


def candidate_rows(
    context: Context, used: Used, asked: StoredDataset, where: pc.Expression
) -> Ints | None:
    """Rows of a table of SQL for which a condition may be true: see `candidates_by_indexes`."""
    find = partial(value_index_beside, context, used.commit, used.path, used.stored)
    return unless_damaged(used.path, lambda: candidates_by_indexes(asked, where, find))


def unless_damaged(path: str, ask: Callable[[], Ints | None]) -> Ints | None:
    """What indexes of values answer about a dataset; None, with a warning, where they are damaged.

    An index is made of its dataset: without it the answer is the same, and takes longer. A store
    that does not answer is an error here as well.
    """
    try:
        return ask()
    except (CorruptError, NotFoundError) as error:
        warnings.warn(
            f"no index of {path} was asked, all rows are scanned: {error} Or make it anew by "
            "`tensorrepo index create`.",
            stacklevel=3,
        )
        return None


def _beside(
    context: Context,
    indexes: OpenedIndexes,
    tree: bytes,
    path: str,
    whole: StoredDataset,
    name: str,
    family: Family,
) -> IndexSearch:
    core, column = context.core, whole.schema.column(name)
    try:
        entry = core.entry(tree, index_path(path, whole.schema, column, family))
        if entry is None or entry.kind is not Kind.SEARCH_INDEX:
            return IndexSearch(None)
        # What is there now: where something was purged, the digests of commits stay.
        content, version = (core.objects.living(each) for each in (entry.digest, whole.digest))
        index = indexes.index(content, lambda: open_index(core.objects, content))
        if index.column_id != column.id or family_of(index.kind) != family:
            return IndexSearch(None, "the index is of another column")
        key = IndexedVersion(content, version, column.id)
        return IndexSearch(indexes.of(key, index, whole, column))
    except PurgedError:
        return IndexSearch(None, "the index was purged")
    except NotFoundError:
        return IndexSearch(None, "what the index was made of is not here")
