"""Files of a repository as Hugging Face's clients see it: what they are, and their bytes.

A model repository has the files of its model entry, byte for byte as they came, and one made of the
tensors that came without a file. A dataset repository has Parquet files made of the rows of its
dataset entry. Both have, beside these, the files that lie in the tree under ``files/models/NAME/``
or ``files/datasets/NAME/``, which go before a file of the entry that has the same name.

Every file is told by its SHA-256, as large ones are there. To list a model that came as files
nothing has to be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import cached_property, partial
from typing import Final

from tensorrepo.api.content import files as blob_files
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.made_weights import MadeWeights, made_weights
from tensorrepo.api.content.model_bytes import pieces_of
from tensorrepo.api.foreign_names import ForeignName, short_commit
from tensorrepo.api.huggingface.errors import file_missing
from tensorrepo.api.huggingface.rendered_files import RenderedFile, RenderedFiles
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.files.models import MADE, has_made_file
from tensorrepo.formats.model.layout.manifest import FileEntry, Original
from tensorrepo.formats.model.read.byte_ranges import file_bytes
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.escaped_paths import escape_path, unescape_path
from tensorrepo.repo.history.trees import Entry, diff
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.names import check_file_name
from tensorrepo.repo.objects.envelope import Kind

# A pointer of git-lfs, by whose hash git knows the file.
_POINTER: Final = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file.

    Attributes:
        path: name in the repository.
        size_bytes: its size.
        content_hash: function that gives hex digits of the SHA-256 of its content. It may take as
            long as to read all of it, once.
        read: function that gives the bytes ``[start, stop)``, proved.
        headers: what a download says of it beside that.
    """

    path: str
    size_bytes: int
    content_hash: Callable[[], str]
    read: Callable[[int, int], Iterator[Buffer]]
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What to call it where it is saved."""
        return self.path.rpartition("/")[2]

    @property
    def sha256(self) -> str:
        return self.content_hash()

    @property
    def etag(self) -> str:
        return f'"{self.sha256}"'

    @property
    def pointer(self) -> bytes:
        """The text that git would hold in its place."""
        return _POINTER.format(self.sha256, self.size_bytes).encode()

    @property
    def blob_id(self) -> str:
        """Git's name of the pointer."""
        return git_blob_id(self.pointer)

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes ``[start, stop)``, some at a time."""
        return (memoryview(piece).cast("B") for piece in self.read(start, stop))

    def whole(self) -> bytes:
        """All of it: for small ones."""
        return b"".join(self.pieces(0, self.size_bytes))


def git_blob_id(content: bytes) -> str:
    """What git calls a file of that content."""
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)  # no slots: properties are remembered
class HubCommit:
    """A repository of Hugging Face's clients at one commit, which the caller may read."""

    content: CommitContent
    name: ForeignName
    rendered: RenderedFiles

    @cached_property
    def entry(self) -> Entry | None:
        """The model or the dataset; None where there are only files, or nothing."""
        if not self.name.is_possible:
            return None
        found = self.content.core.entry(self.content.tree, self.name.entry)
        kind = Kind.MODEL if self.name.space == "models" else Kind.DATASET
        return found if found is not None and found.kind is kind else None

    @property
    def exists(self) -> bool:
        """Whether the commit has anything of that name."""
        return self.entry is not None or next(self.blobs(), None) is not None

    @cached_property
    def model(self) -> StoredModel | None:
        return (
            None
            if self.name.space != "models" or self.entry is None
            else (self.content.model(self.entry))
        )

    @cached_property
    def dataset(self) -> StoredDataset | None:
        if self.name.space != "datasets" or self.entry is None:
            return None
        return self.content.dataset(self.name.entry)

    def blobs(self, folder: str = "", after: str = "") -> Iterator[tuple[str, Entry]]:
        """Files beside the entry, in a folder or in all: paths of the tree, and entries."""
        if not self.name.is_possible:
            return
        prefix = f"{self._blob_path(folder)}/" if folder else self.name.files
        for path, entry in self.content.core.entries(self.content.tree, prefix, after=after):
            if entry.kind is Kind.BLOB:
                yield path, entry

    def differs(self, other: HubCommit) -> bool:
        """Whether another commit has other files of this repository."""
        objects = self.content.core.objects
        own, others = (None if one.entry is None else one.entry.digest for one in (self, other))
        changes = diff(objects, self.content.tree, other.content.tree, self.name.files)
        return own != others or next(changes, None) is not None

    def files(self, folder: str = "", after: str | None = None) -> Iterator[HubFile]:
        """Files of a folder, or all: those of the entry first, behind the file `after`.

        Raises:
            NotFoundError: a name that no folder has.
        """
        self._check_name(folder)
        within = f"{folder}/" if folder else ""
        has_blobs = next(self.blobs(), None) is not None
        own = [
            name
            for name in sorted(self._own_names())
            if name.startswith(within) and not (has_blobs and self._find_blob(name) is not None)
        ]
        is_own = after is None or after in own
        for name in own if is_own else ():
            if after is None or name > after:
                yield self._own_file(name)
        start = "" if is_own or after is None else self._blob_path(after)
        for path, entry in self.blobs(folder, start):
            yield self.blob(path, entry)

    def has_folder(self, folder: str) -> bool:
        """Whether a file lies in that folder."""
        try:
            self._check_name(folder)
        except NotFoundError:
            return False
        own = any(name.startswith(f"{folder}/") for name in self._own_names())
        return own or next(self.blobs(folder), None) is not None

    def find(self, name: str) -> HubFile:
        """The file of that name. Raises NotFoundError."""
        blob = self._find_blob(name)
        if blob is not None:
            return blob
        if name in self._own_names():
            return self._own_file(name)
        raise self._missing("file", name)

    @property
    def weights(self) -> frozenset[str]:
        """Names of files that are known to be weights: tensors are what they are made of."""
        made = frozenset({MADE} if self.has_made_file else ())
        return made if self.model is None else made.union(self.model.originals)

    @cached_property
    def has_made_file(self) -> bool:
        """Whether some of the model's tensors came without a file, so that one is made of them."""
        return self.model is not None and has_made_file(self.model)

    @cached_property
    def made(self) -> MadeWeights | None:
        """The file that is made of these tensors."""
        if self.model is None or not self.has_made_file:
            return None
        return made_weights(self.content, self.model)

    def _own_names(self) -> Collection[str]:
        if self.model is None:
            return self._rendered
        return {*self._kept, MADE} if self.has_made_file else self._kept

    @cached_property
    def _kept(self) -> dict[str, FileEntry | Original]:
        """Files of the model by name."""
        return {} if self.model is None else {**self.model.originals, **self.model.files}

    @cached_property
    def _rendered(self) -> dict[str, RenderedFile]:
        if self.dataset is None or not self.dataset.schema.visible.columns:
            return {}
        return {one.path: one for one in self.rendered.files(self.dataset)}

    def _own_file(self, name: str) -> HubFile:
        if self.model is None:
            return self._rendered_file(name)
        if name not in self._kept:
            assert self.made is not None, "else it is not among the names"
            return HubFile(name, self.made.size_bytes, self.made.sha256, self.made.pieces)
        known = self._kept[name]
        content = partial(pieces_of, partial(file_bytes, self.model, name))
        return HubFile(name, known.size_bytes, known.sha256.hex, content)

    def _rendered_file(self, name: str) -> HubFile:
        assert self.dataset is not None, "else it has no files of its own"
        made = self._rendered[name]
        pieces = partial(self.rendered.pieces, self.dataset, made)
        return HubFile(name, made.size_bytes, lambda: made.sha256, pieces)

    def _missing(self, what: str, name: str) -> NotFoundError:
        commit = self.content.commit
        message = f"no {what} {name!r:.200} in {self.name.id} at {commit:.12}"
        return file_missing(message, short_commit(commit))

    def _check_name(self, folder: str) -> None:
        try:
            if folder:
                escape_path(folder)
        except InvalidInputError as error:
            raise self._missing("folder", folder) from error

    def _blob_path(self, name: str) -> str:
        return self.name.files + escape_path(name)

    def _find_blob(self, name: str) -> HubFile | None:
        try:
            path = self._blob_path(check_file_name(name))
        except InvalidInputError:  # a name that no file has
            return None
        entry = self.content.core.entry(self.content.tree, path)
        return None if entry is None or entry.kind is not Kind.BLOB else self.blob(path, entry)

    def blob(self, path: str, entry: Entry) -> HubFile:
        """A file beside the entry, by its path in the tree."""
        file = blob_files.open_entry(self.content, path, entry)
        name = unescape_path(path.removeprefix(self.name.files))
        return HubFile(name, file.bytes, file.sha256, file.pieces)
