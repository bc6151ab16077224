"""What a presented file is, and folders of them: sizes of metadata, bytes when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from tensorrepo.repo.ids import Buffer

T = TypeVar("T")


class PresentedFile(Protocol):
    """A file that is made of what is stored."""

    @property
    def size_bytes(self) -> int: ...

    def pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        """Bytes ``[start, stop)`` of it, some at a time, proved.

        Raises:
            CorruptError: they are not what was stored.
        """
        ...

    def piece_start(self, at: int) -> int:
        """The first place from `at` on where something begins that is read alone, or the end.

        Ranges that begin and end at such places read nothing twice.
        """
        ...


class PresentedFolder(Protocol):
    """A folder of such files, with folders in it."""

    def names(self, folder: str) -> Mapping[str, int | None] | None:
        """What lies in `folder`, ``""`` being this one: names with sizes, None for a folder.

        None: there is no such folder.
        """
        ...

    def file(self, path: str) -> PresentedFile | None:
        """The file at `path`, relative to this folder; None: there is none."""
        ...


class PathIndex(Generic[T]):
    """Values by relative paths, folder by folder, in the order in which they came."""

    def __init__(self, values: Iterable[tuple[str, T]]) -> None:
        self._folders: dict[str, dict[str, T | None]] = {"": {}}
        for path, value in values:
            folder, _, name = path.rpartition("/")
            self._folder(folder)[name] = value

    def names(self, folder: str) -> Mapping[str, T | None] | None:
        """Names in a folder with their values, None for folders; None: no such folder."""
        return self._folders.get(folder)

    def get(self, path: str) -> T | None:
        folder, _, name = path.rpartition("/")
        return self._folders.get(folder, {}).get(name)

    def _folder(self, path: str) -> dict[str, T | None]:
        known = self._folders.get(path)
        if known is None:
            above, _, name = path.rpartition("/")
            self._folder(above)[name] = None
            known = self._folders[path] = {}
        return known
