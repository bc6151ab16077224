"""Content of one commit, for a caller who may read it: what all functions over content take.

Made by `CommitContent.of` alone, which asks the gate: whoever holds one may read all that its
commit holds, since a grant is for whole refs. Datasets that were opened are kept for a while, with
the metadata that was read of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.reading.page_reader import DecodedPageCache
from tensorrepo.formats.model.read.byte_ranges import ModelBytes
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.views import StoredView, open_rows, open_view
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects.cache import DiskCache, LimitedCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.suggest import did_you_mean

KEPT_DATASETS: Final = 8  # each keeps its page indexes that were last read
KEPT_MODELS: Final = 8  # each keeps its manifest, and directories of its packs
KEPT_PLACES: Final = 4096
KEPT_PROFILES: Final = 256
PROFILE_CACHE_BYTES: Final = 256 << 20
_NAMED: Final = 200  # entries among which a near name is looked for


class Record(BaseModel):
    """An answer: a value that nobody changes."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True, slots=True)
class ContentMemory:
    """What a process remembers of content that it has read; all of it may be lost.

    Attributes:
        pages: pages of all these that were last read from a store.
        datasets: versions of datasets that are open, by repository and digest.
        models: models that are open, by repository, digest and placement.
        places: commits that come next in histories that were read in part.
        proved: large files whose bytes were hashed.
        weights: files that were made of tensors, by the model that they are of.
        hashes: hex digits of the SHA-256 of these, or what computes them.
        making: profiles of columns that were made last, by the digest of the column.
        profiles: the same on disk, for all processes; None: nowhere.
    """

    pages: DecodedPageCache = field(default_factory=DecodedPageCache)
    datasets: LimitedCache[StoredDataset] = field(
        default_factory=lambda: LimitedCache(KEPT_DATASETS)
    )
    models: LimitedCache[StoredModel] = field(default_factory=lambda: LimitedCache(KEPT_MODELS))
    places: LimitedCache[tuple[Digest, ...]] = field(
        default_factory=lambda: LimitedCache(KEPT_PLACES)
    )
    proved: LimitedCache[bool] = field(default_factory=lambda: LimitedCache(KEPT_PLACES))
    weights: LimitedCache[ModelBytes] = field(default_factory=lambda: LimitedCache(KEPT_MODELS))
    hashes: LimitedCache[Future[str]] = field(default_factory=lambda: LimitedCache(KEPT_PLACES))
    making: LimitedCache[Any] = field(default_factory=lambda: LimitedCache(KEPT_PROFILES))
    profiles: DiskCache | None = None


@dataclass(frozen=True, slots=True)
class CommitContent:
    """A commit of a repository, which the caller behind `access` may read."""

    access: RepositoryAccess
    revision: Revision
    memory: ContentMemory

    @classmethod
    def of(cls, access: RepositoryAccess, revision: str, memory: ContentMemory) -> CommitContent:
        """The content of the commit that `revision` names.

        Raises:
            NotFoundError: there is none, or none that the caller may know of.
        """
        return cls(access, access.resolve(revision), memory)

    @property
    def core(self) -> RepositoryCore:
        return self.access.core

    @property
    def commit(self) -> Digest:
        return self.revision.digest

    @property
    def tree(self) -> bytes:
        """Root page of the commit's tree."""
        return self.revision.commit.tree

    def entry(self, path: str) -> Entry:
        """The entry at `path`. Raises NotFoundError, with a near name."""
        found = self.core.entry(self.tree, check_path(path))
        if found is None:
            raise NotFoundError(
                f"no {path} in commit {self.commit:.12} of {self.access.name}."
                f"{did_you_mean(path, self._near(path), '')}"
            )
        return found

    def of_kind(self, path: str, *kinds: Kind) -> Entry:
        """The entry at `path`, of one of these kinds. Raises InvalidInputError for another."""
        found = self.entry(path)
        if found.kind not in kinds:
            wanted = " or ".join(kind.noun for kind in kinds)
            raise InvalidInputError(f"{path} is a {found.kind.noun}, expected a {wanted}")
        return found

    def dataset(self, path: str) -> StoredDataset:
        """The dataset at `path`, or the rows that the view at `path` chooses.

        Raises:
            NotFoundError: there is no such entry.
            InvalidInputError: it is neither.
        """
        entry = self.of_kind(path, Kind.DATASET, Kind.VIEW)
        # What was purged is opened anew, as is what stands in its place.
        key = (self.core.id, entry.digest, len(self.access.view.state.purges))
        return self.memory.datasets.get_or_load(key, lambda: (self._opened(entry), 1))

    def model(self, entry: Entry) -> StoredModel:
        """The model of an entry of this commit, opened."""
        return self.memory.models.get_or_load(
            self.model_key(entry), lambda: (open_model(self.core.objects, entry), 1)
        )

    def model_key(self, entry: Entry) -> object:
        """What names the model of an entry of this repository, and where its tensors lie."""
        return self.core.id, entry.digest, entry.storage, len(self.access.view.state.purges)

    def view(self, path: str) -> StoredView:
        """The view at `path`. Raises as `dataset` does."""
        return open_view(self.core.objects, self.of_kind(path, Kind.VIEW).digest)

    def _opened(self, entry: Entry) -> StoredDataset:
        objects = self.core.objects
        if entry.kind is Kind.DATASET:
            return open_dataset(objects, entry.digest, pages=self.memory.pages)
        view = open_view(objects, entry.digest)
        return open_rows(objects, view, pages=self.memory.pages)[1]

    def _near(self, path: str) -> Iterator[str]:
        folder = path.rpartition("/")[0]
        entries = self.core.entries(self.tree, f"{folder}/" if folder else "")
        yield from (at for at, _ in zip((at for at, _ in entries), range(_NAMED), strict=False))
