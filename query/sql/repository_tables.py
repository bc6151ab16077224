"""SQL tables of a repository: datasets and views of commits, and the catalog.

Datasets and views of one commit by their names, as ``fashion`` or ``datasets.fashion``; of any
other commit as ``"fashion@v1"``; and the tables of the catalog, as ``catalog.model_version``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from typing import Protocol, TypeAlias

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.reading.page_reader import DecodedPageCache
from tensorrepo.formats.views import open_rows, open_view
from tensorrepo.query.sql.pages_table import PagesTable
from tensorrepo.query.sql.pushdown import NUMBER, DatasetTable, Scanned, ScannedTable
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import Revision, split_at
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind

SPACES = {"datasets": Kind.DATASET, "views": Kind.VIEW}
SELF, CATALOG, PAGES = "self", "catalog", "pages"


def row_numbers_query(dataset: StoredDataset, columns: str, condition: str | None) -> str:
    """A query of ``self`` for row numbers, and columns, of the rows for which a condition holds.

    Raises:
        UnsupportedError: a column of the dataset is called as row numbers are.
    """
    if NUMBER in {name.lower() for name in dataset.schema.names}:
        raise UnsupportedError(
            f"this condition is answered by SQL over {NUMBER!r}, which a column of the dataset is "
            "called: rename the column"
        )
    ends = "" if condition is None else f" WHERE (\n{condition}\n)"
    return f"SELECT {NUMBER}{columns} FROM {SELF}{ends}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Used:
    """A dataset that a query read, and where it was."""

    path: str
    commit: Digest
    stored: StoredDataset


FindByIndex: TypeAlias = "Callable[[Used, StoredDataset, pc.Expression], Ints | None]"


class AskedCatalog(Protocol):
    """A catalog, as far as queries ask it."""

    def names(self) -> Iterator[str]:
        """Names of its tables."""

    def table(self, name: str, scanned: Scanned) -> ScannedTable | None:
        """A table; None: there is none of this name."""


@dataclass(slots=True)
class RepositoryTables:
    """The tables of a repository; names without a commit are of `ref`.

    Attributes:
        core: repository that has them.
        ref: revision that names without one are of.
        resolve: gives the commit of a revision, or raises NotFoundError.
        catalog: gives the catalog, which is made when a query names it.
        outside: reads rows that lie in foreign files.
        this: what a query calls ``self``.
        pages: keeps pages that were read from a store, of all datasets that a query names.
        used: datasets that were found.
        by_index: finds rows by the indexes of a version, of all its rows, those that are asked
            for and a condition; None: they are not asked.
    """

    core: RepositoryCore
    ref: str
    resolve: Callable[[str], Revision]
    catalog: Callable[[], AskedCatalog]
    outside: Outside
    this: StoredDataset | None = None
    pages: DecodedPageCache = field(default_factory=DecodedPageCache)
    used: list[Used] = field(default_factory=list)  # as they are found
    by_index: FindByIndex | None = None
    _revisions: dict[str, Revision | None] = field(default_factory=dict)  # of one query

    def begin(self) -> None:
        self._revisions.clear()

    def find(self, path: tuple[str, ...], scanned: Scanned) -> ScannedTable | None:
        if path == (SELF,) and self.this is not None:
            return DatasetTable(self.this, scanned)
        if len(path) == 2 and path[0] == CATALOG:
            return self._of_catalog(path[1], scanned)
        if len(path) == 2 and path[0] in SPACES:
            return self._entry(f"{path[0]}/{path[1]}", scanned)
        if len(path) != 1:
            return None
        if path[0].partition("/")[0] in SPACES and "/" in path[0]:
            return self._entry(path[0], scanned)
        found = {space: self._entry(f"{space}/{path[0]}", scanned) for space in SPACES}
        there = [table for table in found.values() if table is not None]
        if len(there) > 1:
            both = " or ".join(f'"{space}/{path[0]}"' for space in found)
            raise InvalidInputError(f"SQL: {path[0]} is both a dataset and a view: write {both}")
        return there[0] if there else None

    def known(self) -> Iterator[str]:
        """Names of datasets, and of all of the catalog's tables."""
        yield from (f"{CATALOG}.{name}" for name in (*self.catalog().names(), PAGES))
        revision = self._revision(self.ref)
        if revision is None:
            return
        for space, kind in SPACES.items():
            for path, entry in self.core.entries(revision.commit.tree, f"{space}/"):
                if entry.kind is kind:
                    yield path.removeprefix(f"{space}/")

    def _of_catalog(self, name: str, scanned: Scanned) -> ScannedTable | None:
        """A table of the catalog; the pages of datasets are those of one commit."""
        pages, at, ref = name.partition("@")
        if pages != PAGES or (at and not ref):
            return self.catalog().table(name, scanned)
        core, revision = self.core, self._revision(ref or self.ref)

        def datasets() -> Iterator[tuple[str, Digest]]:
            found = () if revision is None else core.entries(revision.commit.tree, "datasets/")
            return ((path, entry.digest) for path, entry in found if entry.kind is Kind.DATASET)

        return PagesTable(datasets, partial(open_dataset, core.objects), scanned)

    def _entry(self, path: str, scanned: Scanned) -> ScannedTable | None:
        found, split = self._at(path, self.ref, scanned), split_at(path)
        return self._at(*split, scanned) if found is None and split is not None else found

    def _at(self, path: str, ref: str, scanned: Scanned) -> ScannedTable | None:
        core = self.core
        try:
            revision = self._revision(ref)
            entry = None if revision is None else core.entry(revision.commit.tree, path)
        except InvalidInputError:  # a word of the query that no entry can be called
            return None
        if revision is None or entry is None or entry.kind not in SPACES.values():
            return None
        if entry.kind is Kind.DATASET:
            stored = open_dataset(core.objects, entry.digest, self.outside, pages=self.pages)
            self.used.append(Used(path, revision.digest, stored))
        else:
            view = open_view(core.objects, entry.digest)
            whole, stored = open_rows(core.objects, view, self.outside, pages=self.pages)
            self.used.append(Used(view.path, view.commit, whole))
        if self.by_index is None:
            return DatasetTable(stored, scanned)
        candidates = partial(self.by_index, self.used[-1], stored)
        return DatasetTable(stored, scanned, candidates=candidates)

    def _revision(self, ref: str) -> Revision | None:
        """None where there is no commit yet: SQL without tables is SQL, too."""
        if ref not in self._revisions:  # each word of a query may be a table
            try:
                self._revisions[ref] = self.resolve(ref)
            except NotFoundError:
                refs = self.core.log.refresh().state.refs
                if ref != "main" or any(name.startswith(BRANCHES) for name in refs):
                    raise
                self._revisions[ref] = None
        return self._revisions[ref]
