"""fsspec's filesystem over the commits of a repository.

Libraries that read by fsspec (pandas, polars, DuckDB, Dask, ...) read files of any commit, see
`tensorrepo.formats.files.commit_files`. What is written is committed: all that one
``with filesystem.transaction`` wrote as one commit, each other file as one of its own.
"""

from __future__ import annotations

import io
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.transaction import Transaction as FileTransaction

from tensorrepo.filesystem.commit import files_of
from tensorrepo.filesystem.urls import DEFAULT_REF, PROTOCOL, FileUrl, parse_url
from tensorrepo.filesystem.writes import WrittenFile, check_target, remove, stage_written
from tensorrepo.formats.files.base import PresentedFile
from tensorrepo.formats.files.commit_files import CommitFiles, FileFacts
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.tables import counted
from tensorrepo.repository import Repository
from tensorrepo.sdk import open_repository
from tensorrepo.transaction import Transaction


class FileCommit(FileTransaction):  # type: ignore[misc]  # fsspec has no types
    """What is written and removed until its end is one commit, or nothing is."""

    fs: TensorrepoFileSystem | None
    files: deque[UncommittedFile]

    def __init__(self, fs: TensorrepoFileSystem, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self.removed: list[str] = []

    def complete(self, commit: bool = True) -> None:
        """Commit, or forget, all of it."""
        filesystem, files, removed = self.fs, list(self.files), self.removed
        assert filesystem is not None, "a transaction ends once"
        self.files.clear()
        try:
            if commit and (files or removed):
                filesystem.commit(files, removed)
        finally:
            for file in files:
                file.discard()
            filesystem._intrans = False  # noqa: SLF001  as fsspec's own does
            filesystem._transaction = None  # noqa: SLF001
            self.fs = None


class TensorrepoFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of a commit of a repository.

    Args:
        url: URL of the repository, as `tensorrepo.open` takes it; a file's own URL may name it.
        ref: which commit; for writing, a branch.
        token: token for a service; else the login of this machine is used.
        message: message of commits.
        author: ``Name <email>`` of commits; else as for `tensorrepo.open`.
        repository_options: storage options of the repository.
        fo, target_protocol, target_options: the repository, where fsspec chained its URL.

    The commit is the one that `ref` names when it is asked first; `invalidate_cache` looks again.
    """

    protocol: ClassVar[str] = PROTOCOL
    root_marker: ClassVar[str] = ""
    transaction_type = FileCommit

    def __init__(
        self,
        url: str | None = None,
        ref: str = DEFAULT_REF,
        *,
        token: str | None = None,
        message: str = "",
        author: str | None = None,
        repository_options: Mapping[str, str] | None = None,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        place = url or _chained(fo, target_protocol)
        if place is None:
            raise InvalidInputError(
                "which repository? Give url=, or a URL such as "
                "tensorrepo://host/team/photos@main/datasets/pets.parquet"
            )
        self.url, self.ref = place, ref
        self._message, self._author = message, author
        self._options = {**(target_options or {}), **(repository_options or {})}
        if token is not None:
            self._options["token"] = token

    @cached_property
    def repository(self) -> Repository:
        """The repository whose files these are."""
        return open_repository(self.url, storage_options=self._options or None, author=self._author)

    @cached_property
    def _files(self) -> CommitFiles:
        context = self.repository.context
        return files_of(context, context.resolve(self.ref))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return parse_url(str(path)).path

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        found: FileUrl = parse_url(path)
        told = {"url": found.repository, "ref": found.ref}
        return {name: value for name, value in told.items() if value is not None}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        place = self.url.partition("://")[2] or self.url
        ref = self.ref.replace("/", "%2F")
        return f"{PROTOCOL}://{place}@{ref}/{self._strip_protocol(name)}"

    # ------------------------------------------------------------------------------ reading

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Names in a folder, or with `detail` what `info` tells; a file is itself."""
        plain = self._strip_protocol(path)
        found = _as_os(self._files.facts, plain)
        if found.is_folder:
            prefix = f"{plain}/" if plain else ""
            names = _as_os(self._files.names, plain)
            listed = [_info(f"{prefix}{name}", facts) for name, facts in names.items()]
        else:
            listed = [_info(plain, found)]
        return listed if detail else [each["name"] for each in listed]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of what is at `path`. A table is made, to know its size."""
        plain = self._strip_protocol(path)
        facts = _as_os(self._files.facts, plain)
        if not facts.is_folder and facts.size_bytes is None:
            facts = FileFacts(False, self._opened(plain).size_bytes)
        return _info(plain, facts)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Bytes ``[start, end)`` of a file; negative ones count from its end."""
        file = self._opened(self._strip_protocol(path))
        first, stop, _step = slice(start, end).indices(file.size_bytes)
        return _joined(file, first, stop)

    def ukey(self, path: str) -> str:
        """A name that changes when the file's content may have: of the commit, and the path."""
        revision = self.repository.context.resolve(self.ref)
        return f"{revision.digest}/{self._strip_protocol(path)}"

    def modified(self, path: str) -> datetime:
        """When the commit was made; when a file was changed, `log` tells."""
        self.info(path)
        time_ns = self.repository.context.resolve(self.ref).commit.time_ns
        return datetime.fromtimestamp(time_ns / 1e9, UTC)

    created = modified

    def invalidate_cache(self, path: str | None = None) -> None:  # noqa: ARG002  fsspec's name
        """Ask `ref` again."""
        self.__dict__.pop("_files", None)

    def _opened(self, plain: str) -> PresentedFile:
        file: PresentedFile = _as_os(self._files.open, plain)
        return file

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        if mode == "rb":
            file = self._opened(path)
            options.pop("size", None)
            return OpenedFile(
                self, path, file, block_size=block_size, cache_options=cache_options, **options
            )
        if mode not in ("wb", "xb"):
            raise InvalidInputError(f"mode {mode!r}: files are read, or written whole")
        check_target(path)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        return UncommittedFile(self, path, autocommit=autocommit)

    # ------------------------------------------------------------------------------ writing

    def commit(self, files: list[UncommittedFile], removed: list[str]) -> None:
        """Make one commit of written files and removals.

        Raises:
            ConflictError: `ref` is no branch.
            InvalidInputError: a table or a model that cannot be read.
        """

        def stage(tx: Transaction) -> None:
            for path in removed:
                remove(tx, path)
            with tempfile.TemporaryDirectory(prefix="tensorrepo-") as folder:
                written = [WrittenFile(file.path, file.content) for file in files]
                stage_written(tx, written, Path(folder))

        self._committed(stage, self._message or _message(files, removed))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: ARG002
        """Remove entries, in one commit; of a folder with `recursive` all of them."""
        paths = [self._strip_protocol(each) for each in ([path] if isinstance(path, str) else path)]
        for plain in paths:
            is_table = plain.endswith(".parquet")
            if not recursive and not is_table and self.isdir(plain) and self._holds_entries(plain):
                raise IsADirectoryError(f"{plain} is a folder: recursive=True removes all in it")
        if self._intrans:
            self.transaction.removed += paths
        else:
            self.commit([], paths)

    def rm_file(self, path: str) -> None:
        """Remove one entry."""
        self.rm(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """A copy of a file or of a whole entry; no bytes move, and it is a commit."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)

        def stage(tx: Transaction) -> None:
            names = [path.removesuffix(".parquet") for path in (source, target)]
            entry = tx.core.entry(source) or tx.core.entry(names[0])
            if entry is None:
                raise NotFoundError(f"there is no entry {source!r:.300} to copy")
            at = target if tx.core.entry(source) is not None else names[1]
            tx.core.stage(at, entry, since=0)

        self._committed(stage, self._message or f"Copy {source} to {target}")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Folders are there when something is in them."""

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """As `makedirs`."""

    def _holds_entries(self, plain: str) -> bool:
        """Whether a folder is one of the tree, and not one entry."""
        context = self.repository.context
        tree = context.resolve(self.ref).commit.tree
        return context.core.entry(tree, plain) is None

    def _committed(self, stage: Callable[[Transaction], None], message: str) -> None:
        refs = self.repository.context.core.log.refresh().state.refs
        if BRANCHES + self.ref not in refs and self.ref != DEFAULT_REF:
            raise ConflictError(
                f"{self.ref!r} is no branch of {self.url}: only onto branches can be written"
            )
        with self.repository.transaction(self.ref, message=message) as tx:
            stage(tx)
        self.invalidate_cache()


class OpenedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file of a commit, read with what fsspec reads ahead."""

    def __init__(
        self, fs: TensorrepoFileSystem, path: str, file: PresentedFile, **options: Any
    ) -> None:
        self._file = file
        super().__init__(fs, path, mode="rb", size=file.size_bytes, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return _joined(self._file, start, min(end, self._file.size_bytes))


class UncommittedFile(io.FileIO):
    """A file that is written to this machine's disk until it is committed."""

    def __init__(self, fs: TensorrepoFileSystem, path: str, *, autocommit: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tensorrepo-")
        self.content = Path(self._folder.name) / path.rpartition("/")[2]
        super().__init__(self.content, "wb")
        self.fs, self.path, self._autocommit = fs, path, autocommit

    def close(self) -> None:
        """The end of writing; outside of a transaction also the commit."""
        if self.closed:
            return
        super().close()
        if self._autocommit:
            try:
                self.fs.commit([self], [])
            finally:
                self.discard()

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if kind is not None:  # what was written in part is no file
            self._autocommit = False
        self.close()
        if kind is not None:
            self.discard()

    def discard(self) -> None:
        """Forget what was written."""
        self._folder.cleanup()

    def commit(self) -> None:
        """As fsspec's files have it; the transaction commits."""


def _chained(place: str | None, protocol: str | None) -> str | None:
    if place is None or protocol in (None, "file", "local") or "://" in place:
        return place
    return f"{protocol}://{place}"


def _as_os(ask: Callable[[str], Any], path: str) -> Any:
    """What `ask` answers; where there is nothing, the error that users of files expect."""
    try:
        return ask(path)
    except NotFoundError as error:
        raise FileNotFoundError(str(error)) from error


def _info(path: str, facts: FileFacts) -> dict[str, Any]:
    kind = "directory" if facts.is_folder else "file"
    return {"name": path, "size": 0 if facts.is_folder else facts.size_bytes, "type": kind}


def _joined(file: PresentedFile, start: int, stop: int) -> bytes:
    return b"".join(bytes(piece) for piece in file.pieces(start, stop)) if stop > start else b""


def _message(files: list[UncommittedFile], removed: list[str]) -> str:
    if not files:
        return f"Remove {', '.join(removed[:5])}"
    paths = ", ".join(file.path for file in files[:5])
    more = f" and {counted(len(files) - 5, 'other')}" if len(files) > 5 else ""
    return f"Write {paths}{more}"
