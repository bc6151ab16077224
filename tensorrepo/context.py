"""Context of SDK handles: the open repository, how another process opens it, this machine.

A handle holds a context and not the `Repository`, so that handles know nothing of each other.
"""

from __future__ import annotations

import warnings
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensorrepo import connect
from tensorrepo.formats.common.arguments import path_in, ref_text
from tensorrepo.repo.changes.revisions import Revision, resolve
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.workspace.state import config_beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.formats.dataset.external.outside import Nothing
    from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
    from tensorrepo.repo.changes.repository import RepositoryCore
    from tensorrepo.repo.history.trees import Entry
    from tensorrepo.repo.objects.envelope import Kind


@dataclass(frozen=True, slots=True)
class RepositoryOrigin:
    """What a repository was opened with, to open it again in another process."""

    url: str = field(repr=False)
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    author: str | None = None
    outside: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = field(default=(), repr=False)
    catalog: str | None = field(default=None, repr=False)
    log: str | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Context:
    """An open repository, and who works on it. Picklable: another process opens the URL again.

    Attributes:
        core: the repository itself.
        origin: arguments that open it again.
        machine: environment, home and working folder of this process.
        reopen: opens `origin` in the process that reads a pickle.
    """

    core: RepositoryCore
    origin: RepositoryOrigin
    machine: connect.Machine
    reopen: Callable[[RepositoryOrigin], Context]

    @property
    def url(self) -> str:
        return self.core.url

    @cached_property
    def outside(self) -> AllowedOutside | Nothing:
        """Reader of data outside of the repository, limited to prefixes that the user allows."""
        more = {prefix: dict(options) for prefix, options in self.origin.outside}
        return connect.allowed_outside(self.machine, more)

    @property
    def author(self) -> str:
        """``Name <email>`` of commits. Raises InvalidInputError when no setting names one."""
        return self.origin.author or connect.author(self.machine, config_beside(self.url))

    @property
    def catalog_url(self) -> str:
        return connect.catalog_url(self.machine, self.core.id, self.origin.catalog)

    def world(self, rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
        """(rank, world size) of this process: arguments first, then RANK and WORLD_SIZE."""
        return connect.world(self.machine.environment, rank, world_size)

    def resolve(self, ref: str) -> Revision:
        """The commit that `ref` names. Raises NotFoundError with near names."""
        revision = resolve(self.core, ref_text(ref))
        if revision.warning:
            warnings.warn(revision.warning, stacklevel=3)
        return revision

    def entry(self, space: str, name: str, ref: str, kind: Kind) -> tuple[Revision, str, Entry]:
        """The entry of a name in one space (``datasets``, ``models``, ...), and where it lies.

        Raises:
            NotFoundError: no such ref, or no entry of this kind; names what there is.
        """
        path = path_in(space, name)
        try:
            revision = self.resolve(ref)
        except NotFoundError as error:
            if meant := self._meant_as_ref(space, name, kind):
                raise NotFoundError(f"no {path}: {meant}") from error
            raise
        entry = self.core.entry(revision.commit.tree, path)
        if entry is None or entry.kind is not kind:
            paths = [at for at, _ in self.core.entries(revision.commit.tree, space + "/")]
            listed = f"there are {', '.join(paths[:8])}" if paths else f"there are no {space}"
            listed = self._meant_as_ref(space, name, kind) or listed
            raise NotFoundError(f"no {path} in commit {revision.digest:.12} ({ref}); {listed}")
        return revision, path, entry

    def _meant_as_ref(self, space: str, name: str, kind: Kind) -> str:
        """What to ask for where a ref, such as ``runs/exp1/8``, was given as a name; or nothing."""
        commit = self.core.log.refresh().state.refs.get(name)
        if commit is None:
            return ""
        tree = read_commit(self.core.objects, commit).tree
        inside = (at for at, one in self.core.entries(tree, f"{space}/") if one.kind is kind)
        found = next(inside, None)
        if found is None:
            return f"{name} is a ref, and its commit has no {space}"
        call = f"repo.{kind.noun}({found.removeprefix(f'{space}/')!r}, ref={name!r})"
        return f"{name} is a ref, not the name of a {kind.noun}: `{call}`"

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reopen, (self.origin,)

    def __repr__(self) -> str:
        return f"Repository({self.url!r}, id={self.core.id:.8})"
