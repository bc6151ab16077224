"""Gate to one repository: all that a caller does with it goes through what is made here.

Authorization sits here and in the functions that take a `RepositoryAccess`, not in routes. A
digest is no capability: what one names must be reached by a ref that the caller may read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.grants import Action
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import Head, Revision, base_name, resolve
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError, PermissionDenied
from tensorrepo.repo.history.commits import is_contained
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView

MAIN: Final = Head(branch="main")
DIGEST_DIGITS: Final = 64
_DIGITS: Final = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class RepositoryAccess:
    """A repository as one caller may see it. Made by `enter`, for one request."""

    served: ServedRepository
    caller: Caller

    @property
    def name(self) -> str:
        return self.served.name

    @property
    def core(self) -> RepositoryCore:
        """The whole repository: for functions that have asked `require` before."""
        return self.served.core

    @property
    def view(self) -> LogView:
        return self.served.view

    @property
    def reads_all(self) -> bool:
        """Whether every ref may be read, and with it the log."""
        return self.caller.may(Action.READ, self.name, None)

    def may(self, action: Action, ref: str | None = None) -> bool:
        return self.caller.may(action, self.name, ref)

    def require(self, action: Action, ref: str | None = None) -> None:
        """Raises PermissionDenied unless `action` is allowed on `ref`; None: on every ref."""
        if not self.may(action, ref):
            what = "all of" if ref is None else f"{ref} of"
            raise PermissionDenied(
                f"{self.caller.name or 'nobody'} may not {action.verb} {what} {self.name}. Ask an "
                "admin of the repository for it, or use another token."
            )

    def refs(self) -> Mapping[str, Digest]:
        """Refs that the caller may read."""
        refs = self.view.state.refs
        if self.reads_all:
            return refs
        return {ref: at for ref, at in refs.items() if self.may(Action.READ, ref)}

    def visible(self) -> LogView:
        """The repository with the refs alone that the caller may read."""
        if self.reads_all:
            return self.view
        return replace(self.view, state=replace(self.view.state, refs=self.refs()))

    def resolve(self, text: str) -> Revision:
        """The commit that `text` names, if a ref that the caller may read leads to it.

        ``HEAD`` is the branch main.

        Raises:
            NotFoundError: there is none, or none that this caller may know of: who may not read
                all is answered alike.
        """
        if self.reads_all:
            return resolve(self.core, text, head=MAIN, view=self.view)
        visible, name = self.visible(), base_name(text)
        unknown = NotFoundError(f"{text!r:.120} names nothing that {self.caller.name} may read")
        is_digest = _DIGITS.fullmatch(name) is not None
        if is_digest and len(name) < DIGEST_DIGITS and not _names_ref(name, visible):
            raise unknown  # whether digits are enough depends on commits that must not be known
        try:
            found = resolve(self.core, text, head=MAIN, view=visible)
        except NotFoundError as error:
            raise (unknown if is_digest else error) from None
        if not self.reaches(found.digest):
            raise unknown
        return found

    def reaches(self, commit: Digest) -> bool:
        """Whether a ref that the caller may read leads to a commit."""
        tips = dict.fromkeys(self.refs().values())
        return commit in tips or is_contained(self.core.objects, commit, tips)


def enter(directory: Directory, caller: Caller, name: str) -> RepositoryAccess:
    """The gate: a repository for a caller who may do anything at all with it.

    Raises:
        UnauthenticatedError: nobody asks.
        PermissionDenied: the caller has no grant; also where there is no such repository, so that
            names of others' repositories cannot be found out.
        NotFoundError: there is none, and the caller might have read it.
    """
    caller.require_known()
    if caller.level(name) is None:
        raise PermissionDenied(
            f"{caller.name} may not read {name}, or there is no such repository. Ask its admin."
        )
    return RepositoryAccess(directory.open(name), caller)


def _names_ref(name: str, view: LogView) -> bool:
    return any(ref in view.state.refs for ref in (name, BRANCHES + name, TAGS + name))
