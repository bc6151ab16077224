"""Which tables does SQL find in a repository?

Datasets and views of one commit by their names, as ``fashion`` or ``datasets.fashion``; of any
other commit as ``"fashion@v1"``; and the tables of the catalog, as ``catalog.model_version``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.query.duck import MEMORY, Session, Settings
from tensorrepo.query.pushdown import DatasetTable
from tensorrepo.query.sandbox import query_sandboxed
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.dataset.read import Dataset as StoredDataset
    from tensorrepo.query.arrowscan import Scanned, Table
    from tensorrepo.query.duck import Params
    from tensorrepo.query.results import Result
    from tensorrepo.query.sandbox import Limits
    from tensorrepo.repository import Repository

SPACES = ("datasets",)
SELF = "self"


@dataclass(slots=True)
class RepositoryTables:
    """The tables of a repository; names without a commit are of `ref`."""

    repository: Repository
    ref: str
    this: StoredDataset | None = None  # what a query calls ``self``

    def find(self, path: tuple[str, ...], scanned: Scanned) -> Table | None:
        if path == (SELF,) and self.this is not None:
            return DatasetTable(self.this, scanned)
        if len(path) == 2 and path[0] in SPACES:
            return self._entry(f"{path[0]}/{path[1]}", scanned)
        if len(path) != 1:
            return None
        if path[0].startswith(tuple(f"{space}/" for space in SPACES)):
            return self._entry(path[0], scanned)
        found = (self._entry(f"{space}/{path[0]}", scanned) for space in SPACES)
        return next((each for each in found if each is not None), None)

    def known(self) -> Iterator[str]:
        """Names of datasets, and of all of the catalog's tables."""
        tree = self._tree(self.ref)
        for space in SPACES if tree is not None else ():
            for path, _ in self.repository.core.entries(tree, f"{space}/"):
                yield path.removeprefix(f"{space}/")

    def _entry(self, path: str, scanned: Scanned) -> Table | None:
        return self._at(path, self.ref, scanned) or self._of_other_commit(path, scanned)

    def _of_other_commit(self, path: str, scanned: Scanned) -> Table | None:
        name, at, ref = path.partition("@")
        return self._at(name, ref, scanned) if at and ref else None

    def _at(self, path: str, ref: str, scanned: Scanned) -> Table | None:
        core = self.repository.core
        try:
            tree = self._tree(ref)
            entry = None if tree is None else core.entry(tree, path)
        except InvalidInputError:  # a word of the query that no entry can be called
            return None
        if entry is None or entry.kind is not Kind.DATASET:
            return None
        stored = open_dataset(core.objects, entry.digest, self.repository.outside)
        return DatasetTable(stored, scanned)

    def _tree(self, ref: str) -> Any:
        """None where there is no commit yet: SQL without tables is SQL, too."""
        try:
            return self.repository.resolve(ref).commit.tree
        except NotFoundError:
            if ref != "main" or self.repository.branches():
                raise
            return None


def sql(
    repository: Repository,
    query: str,
    *,
    ref: str = "main",
    params: Params = None,
    memory: str = MEMORY,
    this: StoredDataset | None = None,
    untrusted: Limits | None = None,
) -> Result:
    """See `Repository.sql`. `this` is the dataset that the query calls ``self``."""
    found = RepositoryTables(repository, ref, this)
    if untrusted is not None:
        return query_sandboxed(found, query, untrusted, params)
    return Session(found, Settings(memory=memory)).query(query, params)
