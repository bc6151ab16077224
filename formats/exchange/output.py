"""Atomic output of exports: whole files or none, nothing overwritten by accident.

Everything is written to a temporary name beside the target and renamed when it is complete. A
failure, also an interrupt, leaves nothing behind. Exporters ask for a `Table`, which a dataset is.
"""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorrepo.formats.dataset.schema.schema import Column, Schema


class ExportTable(Protocol):
    """What an exporter needs of a dataset."""

    @property
    def schema(self) -> Schema: ...

    @property
    def properties(self) -> Mapping[str, Any]:
        """Notes of the whole, such as names of classes."""
        ...

    def __len__(self) -> int: ...

    def to_batches(
        self, columns: Sequence[str] | None = None, *, max_bytes: int = BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """All rows in order, as Arrow batches of at most about `max_bytes`."""
        ...


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path to write to, which becomes `path` when the block ends well.

    Raises:
        InvalidInputError: `path` exists and `overwrite` is not set, or it is a folder.
        NotFoundError: the folder that it should be in does not exist.
    """
    with _failures(path):
        _check_target(path, overwrite=overwrite)
        if path.is_dir():
            raise InvalidInputError(f"{path} is a folder; this format writes one file")
    with _temporary(path) as temporary:
        yield temporary
        if overwrite:
            temporary.replace(path)
        else:
            _rename_new(temporary, path)


@contextmanager
def new_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write into, which becomes `path` when the block ends well.

    Raises: as `new_file`; an existing folder that holds a repository, a workspace or the current
        folder is not replaced even when told to.
    """
    with _failures(path):
        _check_target(path, overwrite=overwrite)
        if path.exists() and not path.is_dir():
            raise InvalidInputError(f"{path} is a file; this format writes a folder")
        _protect(path)
    with _temporary(path) as temporary:
        temporary.mkdir()
        yield temporary
        old = _beside(path)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def compressed(raw: IO[bytes], *, gzipped: bool) -> IO[bytes]:
    """A stream into `raw`, through gzip when asked. Closing it does not close `raw`."""
    if not gzipped:
        return raw
    # No name and no time in the header: the same rows make the same file.
    return gzip.GzipFile("", "wb", 6, raw, mtime=0)  # type: ignore[return-value]  # a stream in all but name


def column_refused(column: Column, what: str) -> InvalidInputError:
    """The error for a column that a format cannot hold; `what` says why."""
    kind = type(column.type).__name__
    return InvalidInputError(
        f"column {column.name!r} ({kind}): {what}. Leave it out with columns=..., or export to "
        "parquet or arrow, which hold every column"
    )


def _check_target(path: Path, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise NotFoundError(f"{path.parent}: no such folder. Make it first.")
    if os.path.lexists(path) and not overwrite and not _is_empty_folder(path):
        raise InvalidInputError(
            f"{path} exists already. Choose another path, or overwrite it: --force, in Python "
            "overwrite=True"
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _protect(path: Path) -> None:
    """Refuse to replace what nobody means when they say overwrite."""
    if not path.exists():
        return
    inside = [name for name in (".tensorrepo", ".git") if (path / name).exists()]
    if inside or Path.cwd().is_relative_to(path.resolve()):
        reason = f"holds {inside[0]}" if inside else "is, or holds, the current folder"
        raise InvalidInputError(f"{path} {reason} and is not replaced. Choose another path.")


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temporary = _beside(path)
    try:
        with _failures(path):
            yield temporary
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                temporary.unlink()


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except PermissionError as problem:
        raise PermissionDenied(f"{path}: no permission to write here") from problem
    except OSError as problem:
        raise StorageError(f"{path}: {problem.strerror or problem}") from problem


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}.tmp")


def _rename_new(temporary: Path, path: Path) -> None:
    """Rename without replacing a file that somebody made meanwhile."""
    try:
        os.link(temporary, path)
    except FileExistsError as problem:
        raise InvalidInputError(f"{path} appeared while it was being written") from problem
    except OSError:  # a file system without hard links
        temporary.rename(path)
