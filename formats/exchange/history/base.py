"""What a history of another tool tells: commits, their files, and where the bytes of those are.

A source is read and never written. It knows the files of a commit without reading them; their bytes
are verified against what names them when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from tensorrepo.repo.deferred_dataclass import dataclass

HEADS, TAGS = "heads/", "tags/"


@dataclass(frozen=True, slots=True)
class HistoryCommit:
    """One commit of another tool.

    Attributes:
        id: what that tool calls it.
        parents: ids of those that it was made on.
        author: as it is written there.
        message: as it is written there.
        time_ns: when it was authored, UTC.
    """

    id: str
    parents: tuple[str, ...]
    author: str
    message: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file of a commit.

    Attributes:
        key: names its content: equal keys, equal bytes.
        fault: why its content cannot be had; None: it can.
        pointer: what is there instead, where a small file names the content; None: nothing is.
    """

    key: str
    fault: str | None = None
    pointer: HistoryFile | None = None


class ForeignHistory(Protocol):
    """A repository of another tool, or a folder in which one keeps what it downloaded."""

    @property
    def tool(self) -> str:
        """Its name, such as "git"."""

    @property
    def name(self) -> str:
        """What the repository is called."""

    @property
    def is_model(self) -> bool:
        """Whether all files of a commit are one model."""

    @property
    def folder(self) -> str:
        """Folder of our tree for files that are no models, such as "files"."""

    @property
    def notes(self) -> list[str]:
        """What a user should know of what was left out; grows while it is read."""

    def refs(self) -> Mapping[str, str]:
        """Ids of commits by ``heads/NAME`` and ``tags/NAME``."""

    def commits(self) -> Iterable[HistoryCommit]:
        """All commits that refs lead to, parents before children."""

    def files(self, commit: str) -> Mapping[str, HistoryFile]:
        """Files of a commit by their paths there, with slashes."""

    def content(self, file: HistoryFile, scratch: Path) -> Path:
        """Where the bytes of a file lie, verified.

        Args:
            file: one without a fault.
            scratch: path for them where they lie nowhere as they are.

        Raises:
            CorruptError: they are not what names them.
        """

    def close(self) -> None:
        """End what was started for reading."""
