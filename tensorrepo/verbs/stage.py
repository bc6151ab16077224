"""Stage protocol: where a verb stores objects, and names the entries of the next commit.

A transaction of the SDK is one, and so is the staging area of a workspace. Verbs know no more.
"""

from __future__ import annotations

from typing import Protocol

from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.writer import ObjectWriter


class Stage(Protocol):
    """The next commit, while it is made."""

    @property
    def objects(self) -> ObjectWriter:
        """Takes the objects of new entries, and reads what the repository has."""

    def entry(self, path: str) -> Entry | None:
        """The entry that the next commit will have at `path`."""

    def stage(self, path: str, entry: Entry, *, since: int | None = None) -> None:
        """Name an entry whose objects were stored.

        Args:
            path: path of the entry, by the path grammar.
            entry: what the next commit has there.
            since: log generation at which its objects were stored, where that was before the
                stage began; 0 for objects of a commit that no ref may lead to.
        """
