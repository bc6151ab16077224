"""All files of one commit: where the tree's entries are, and what each of them looks like.

    files/notes.txt                      a file, as it is
    models/net/model.safetensors         a model: its files as they came, else one of all tensors
    datasets/pets.parquet                a dataset, or the rows of a view, as a table
    datasets/pets/cat/1.png              and as a folder of images, if its columns are those of one

Runs, and what else is no files, are left out. A listing opens the tree, and the roots of datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.files.base import PresentedFile, PresentedFolder
from tensorrepo.formats.files.images import ImageFolder, is_image_folder
from tensorrepo.formats.files.models import ModelFolder
from tensorrepo.formats.files.rendered import WRITER_VERSION, Renderings
from tensorrepo.formats.model.read.byte_ranges import ProvedFrames
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.views import open_rows, open_view
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.blob_bytes import open_blob
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.threads import ordered_map

PARQUET: Final = ".parquet"
_OPEN_FOLDERS: Final = 64
_PROVED_BLOBS: Final = 4096
_KNOWN_DATASETS: Final = 65536
_ROOT_THREADS: Final = 16  # that ask a store for roots of datasets
_BEHIND: Final = "\x7f"  # behind all that paths consist of
ROWS: Final = frozenset({Kind.DATASET, Kind.VIEW})

Entries = Callable[[str, str], Iterator[tuple[str, Entry]]]  # by the prefix of paths, and after one


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a name without opening it.

    Attributes:
        is_folder: whether it is one.
        size_bytes: size of a file; None where it is known when the file is opened.
    """

    is_folder: bool
    size_bytes: int | None = None


FOLDER: Final = FileFacts(is_folder=True)


@dataclass(frozen=True, slots=True, eq=False)
class CommitFiles:
    """Files of one commit; nothing of them ever changes. Safe to share between threads.

    Attributes:
        objects: where the commit is stored.
        entries: entries of its tree whose paths begin with a text, after a path.
        pool: decodes what is read of models.
        renderings: where tables are rendered to.
        outside: reader of files in place; see `open_dataset`.
    """

    objects: ObjectStore
    entries: Entries
    pool: Executor
    renderings: Renderings
    outside: Outside | None = None
    _folders: LimitedCache[PresentedFolder] = field(
        default_factory=lambda: LimitedCache(_OPEN_FOLDERS)
    )
    _of_images: LimitedCache[bool] = field(default_factory=lambda: LimitedCache(_KNOWN_DATASETS))
    _proved_frames: ProvedFrames = field(default_factory=ProvedFrames)
    _proved: LimitedCache[bool] = field(default_factory=lambda: LimitedCache(_PROVED_BLOBS))

    def names(self, folder: str) -> dict[str, FileFacts]:
        """What lies in `folder`, ``""`` being the uppermost.

        Raises:
            NotFoundError: there is no such folder.
        """
        found = dict(self._of_tree(folder))
        inner = self._inner(folder)
        if inner is not None:
            within, below = inner
            names = within.names(below)
            for name, size in (names or {}).items():
                found.setdefault(name, FOLDER if size is None else FileFacts(False, size))
            if names is None and not found:
                raise self._missing(folder)
        elif folder and not found:
            raise self._missing(folder)
        return found

    def facts(self, path: str) -> FileFacts:
        """What is at `path`. Raises NotFoundError."""
        if not path:
            return FOLDER
        entry = self._entry(path)
        if entry is not None:
            facts = dict(self._presented((path, entry))).get(path.rpartition("/")[2])
            if facts is not None:
                return facts
        table = self._table(path)
        if table is not None:
            return FileFacts(False, self.table_size(table))
        inner = self._inner(path)
        if inner is not None:
            within, below = inner
            if within.names(below) is not None:
                return FOLDER
            file = within.file(below)
            if file is not None:
                return FileFacts(False, file.size_bytes)
        if next(self.entries(f"{path}/", ""), None) is not None:
            return FOLDER
        raise self._missing(path)

    def open(self, path: str) -> PresentedFile:
        """The file at `path`.

        Raises:
            NotFoundError: there is none.
            InvalidInputError: it is a folder, or holds what the format cannot.
        """
        entry = self._entry(path)
        if entry is not None and entry.kind is Kind.BLOB:
            return open_blob(self.objects, entry.digest, path, self._proved)
        table = self._table(path)
        if table is not None:
            return self.open_table(table)
        inner = self._inner(path)
        file = None if inner is None else inner[0].file(inner[1])
        if file is None:
            self.facts(path)  # raises where there is nothing
            raise InvalidInputError(f"{path} is a folder, not a file")
        return file

    def rows(self, entry: Entry) -> StoredDataset:
        """A dataset, or the rows of a view."""
        if entry.kind is Kind.DATASET:
            return open_dataset(self.objects, entry.digest, self.outside)
        return open_rows(self.objects, open_view(self.objects, entry.digest), self.outside)[1]

    def _of_tree(self, folder: str) -> Iterator[tuple[str, FileFacts]]:
        """Names of entries and folders of the tree that lie in `folder`."""
        folders, entries = self._children(folder)
        yield from ((name, FOLDER) for name in folders)
        shown = ordered_map(entries, self._presented, threads=_ROOT_THREADS, name="root")
        for each in shown:
            yield from each

    def _children(self, folder: str) -> tuple[list[str], list[tuple[str, Entry]]]:
        """Names of folders, and entries with their paths, that lie in a folder of the tree."""
        prefix, after = f"{folder}/" if folder else "", ""
        folders: list[str] = []
        entries: list[tuple[str, Entry]] = []
        while step := next(self.entries(prefix, after), None):
            name, slash, _ = step[0].removeprefix(prefix).partition("/")
            if slash:
                folders.append(name)
                after = f"{prefix}{name}/{_BEHIND}"
            else:
                entries.append(step)
                after = step[0]
        return folders, entries

    def _presented(self, placed: tuple[str, Entry]) -> list[tuple[str, FileFacts]]:
        """What one entry looks like in the folder that it lies in."""
        path, entry = placed
        name = path.rpartition("/")[2]
        if entry.kind is Kind.BLOB:
            return [(name, FileFacts(False, list_entry(path, entry).bytes))]
        if entry.kind is Kind.MODEL:
            return [(name, FOLDER)]
        if entry.kind not in ROWS:
            return []
        table = (name + PARQUET, FileFacts(False, self.table_size(entry)))
        return [table, (name, FOLDER)] if self._is_folder(entry) else [table]

    def _inner(self, path: str) -> tuple[PresentedFolder, str] | None:
        """The entry that is a folder and is at `path` or above it, and where `path` lies in it."""
        at = path
        while at:
            entry = self._entry(at)
            if entry is not None:
                folder = self._folder(entry)
                return None if folder is None else (folder, path[len(at) + 1 :])
            at = at.rpartition("/")[0]
        return None

    def _folder(self, entry: Entry) -> PresentedFolder | None:
        """The folder that an entry looks like, if it does."""
        if entry.kind is not Kind.MODEL and not self._is_folder(entry):
            return None
        return self._folders.get_or_load(
            (entry.digest, entry.storage), lambda: (self._open_folder(entry), 1)
        )

    def _open_folder(self, entry: Entry) -> PresentedFolder:
        if entry.kind is Kind.MODEL:
            return ModelFolder(open_model(self.objects, entry), self.pool, self._proved_frames)
        return ImageFolder(self.rows(entry))

    def _is_folder(self, entry: Entry) -> bool:
        """Whether an entry has rows, and they are a folder of images."""
        return entry.kind in ROWS and self._of_images.get_or_load(
            entry.digest, lambda: (is_image_folder(self.rows(entry)), 1)
        )

    def table_size(self, entry: Entry) -> int | None:
        """Bytes of an entry's table; None: it was not rendered yet."""
        return self.renderings.size_bytes(_key(entry))

    def open_table(self, entry: Entry) -> PresentedFile:
        """An entry's rows as a Parquet file."""
        return self.renderings.open(_key(entry), partial(_render, self.rows(entry)))

    def _table(self, path: str) -> Entry | None:
        """The entry of which `path` is the table."""
        if not path.endswith(PARQUET):
            return None
        entry = self._entry(path.removesuffix(PARQUET))
        return entry if entry is not None and entry.kind in ROWS else None

    def _entry(self, path: str) -> Entry | None:
        """The entry at `path`; texts that are no paths of entries have none."""
        if not path.isascii():
            return None
        found = next(self.entries(path, ""), None)
        return found[1] if found is not None and found[0] == path else None

    def _missing(self, path: str) -> NotFoundError:
        return NotFoundError(f"there is no {path!r:.300} in this commit")


def _key(entry: Entry) -> str:
    """What the table of an entry is found by: its rows, and who wrote it."""
    return f"{entry.digest}-parquet-{WRITER_VERSION}-{pa.__version__.replace('.', '_')}"


def _render(rows: StoredDataset, target: Path) -> None:
    registry.export(rows, target, "parquet")
