"""Which models do these commits hold, each once, and under which names?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.repository import Repository
    from tensorrepo.repo.trees import Entry

SPACE: Final = "models/"


@dataclass(frozen=True, slots=True)
class Reached:
    """A model, where it is stored (more than once when it was stored twice), and its names.

    `names` are (ref, path), in the order in which they were found.
    """

    digest: Digest
    entries: tuple[Entry, ...]
    names: tuple[tuple[str, str], ...]

    def is_below(self, paths: Iterable[str]) -> bool:
        """Whether one of its paths is one of these, or lies in one as in a folder."""
        return any(
            path == wanted or path.startswith(f"{wanted.rstrip('/')}/")
            for wanted in paths
            for _, path in self.names
        )

    @property
    def text(self) -> str:
        """``main:models/net``, and how many names more."""
        return f"{self.names[0][0]}:{self.path}"

    @property
    def path(self) -> str:
        """``models/net``, and how many names more."""
        more = len(self.names) - 1
        return self.names[0][1] + (f" (+{more})" if more else "")


def models_at(repository: Repository, trees: Mapping[str, bytes]) -> tuple[Reached, ...]:
    """The models of some trees, given by name of the ref, as they are stored now.

    A tree that several refs share is read once.
    """
    names: dict[Digest, list[tuple[str, str]]] = {}
    entries: dict[Digest, dict[Entry, None]] = {}
    refs: dict[bytes, list[str]] = {}
    for ref, tree in trees.items():
        refs.setdefault(tree, []).append(ref)
    for tree, sharing in refs.items():
        for path, entry in repository.entries(tree, SPACE):
            if entry.kind is Kind.MODEL and entry.storage is not None:
                names.setdefault(entry.digest, []).extend((ref, path) for ref in sharing)
                entries.setdefault(entry.digest, {})[entry] = None
    return tuple(Reached(digest, tuple(entries[digest]), tuple(names[digest])) for digest in names)


def every_tree(repository: Repository) -> dict[str, bytes]:
    """The tree of every ref, by the name that it is commonly called."""
    found: dict[str, bytes] = {}
    for ref, commit in sorted(repository.log.refresh().state.refs.items()):
        short = ref.removeprefix("heads/").removeprefix("tags/")
        name = ref if short in found else short
        found[name] = read_commit(repository.objects, commit).tree
    return found
