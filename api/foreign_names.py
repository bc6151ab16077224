"""Names of other clients' worlds: which entry, commit and ref of ours each of them means.

A model registry of elsewhere has "repositories" of one model each. Ours has many entries, so
``ns/name`` is the entry ``models/name`` or ``datasets/name`` of the repository ``ns``; branches,
tags and proposals are that repository's. A commit is named by 40 hex digits there, which are the
first of the 64 of ours.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.revisions import Revision, resolve
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.merge_requests.records import head_ref
from tensorrepo.repo.names import check_path, is_path

EntrySpace = Literal["models", "datasets"]
COMMIT_DIGITS: Final = 40
_COMMIT: Final = re.compile(rf"[0-9a-f]{{{COMMIT_DIGITS}}}")
_PROPOSAL: Final = re.compile(r"refs/pr/([1-9][0-9]{0,8})")
_PROPOSED: Final = re.compile(r"requests/([0-9]+)/head")
_BOOKS: Final = f"{BRANCHES}meta/"  # branches that are the service's and the registry's own
# How git spells refs in full; ours stand behind it.
_FULL_REFS: Final = {"refs/heads/": BRANCHES, "refs/tags/": TAGS}


@dataclass(frozen=True, slots=True)
class ForeignName:
    """``namespace/name`` as a client of elsewhere says it.

    Attributes:
        namespace: name of the repository.
        name: last part of the entry's path.
        space: folder of the entry.
    """

    namespace: str
    name: str
    space: EntrySpace

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def entry(self) -> str:
        """Path of the entry with its tensors, or its rows."""
        return f"{self.space}/{self.name}"

    @property
    def files(self) -> str:
        """Beginning of the paths of files that lie beside the entry."""
        return f"files/{self.space}/{self.name}/"

    @property
    def is_possible(self) -> bool:
        """Whether an entry may be called so."""
        return is_path(self.entry)

    def require_possible(self) -> None:
        """Raises InvalidInputError for a name that no entry can have."""
        check_path(self.entry)


@dataclass(frozen=True, slots=True)
class ForeignRefs:
    """Refs of a repository that the caller may read, by the names that clients of elsewhere know.

    Attributes:
        branches: commits by name of the branch.
        tags: commits by name of the tag.
        proposals: commits that merge requests propose, by number.
    """

    branches: dict[str, Digest]
    tags: dict[str, Digest]
    proposals: dict[int, Digest]


def foreign_refs(access: RepositoryAccess) -> ForeignRefs:
    """All refs that have such a name; branches that are the service's own have none."""
    found = ForeignRefs({}, {}, {})
    for ref, at in sorted(access.refs().items()):
        proposed = _PROPOSED.fullmatch(ref)
        if proposed is not None:
            found.proposals[int(proposed[1])] = at
        elif ref.startswith(TAGS):
            found.tags[ref.removeprefix(TAGS)] = at
        elif ref.startswith(BRANCHES) and not ref.startswith(_BOOKS):
            found.branches[ref.removeprefix(BRANCHES)] = at
    return found


def short_commit(commit: Digest) -> str:
    """What a commit is called where names have 40 hex digits."""
    return commit[:COMMIT_DIGITS]


def proposal_number(text: str) -> int | None:
    """The merge request that a revision such as ``refs/pr/3`` names; None: it names none."""
    found = _PROPOSAL.fullmatch(text)
    return None if found is None else int(found[1])


def resolve_foreign(access: RepositoryAccess, text: str) -> Revision:
    """The commit that a revision of elsewhere names, which the caller may read.

    Beside what `RepositoryAccess.resolve` knows: 40 digits of a commit, ``refs/heads/x``,
    ``refs/tags/x``, and ``refs/pr/3``, the commit that merge request 3 proposes.

    Raises:
        NotFoundError: there is none, or none that the caller may know of.
    """
    if _COMMIT.fullmatch(text):
        return _by_digits(access, text)
    number = proposal_number(text)
    if number is not None:
        return _by_ref(access, head_ref(number), text)
    for prefix, space in _FULL_REFS.items():
        if text.startswith(prefix):
            return _by_ref(access, space + text.removeprefix(prefix), text)
    return access.resolve(text)


def _by_digits(access: RepositoryAccess, text: str) -> Revision:
    """The commit whose digest begins so.

    40 digits name one commit or none: unlike with few, whether they are enough tells nobody what
    else there is. So who may read some refs gets it as well, if one of these leads to it.
    """
    unknown = NotFoundError(f"no commit {text} that {access.caller.name} may read")
    tip = next((one for one in access.refs().values() if one.startswith(text)), None)
    if tip is not None:
        return Revision(tip, read_commit(access.core.objects, tip), None)
    try:
        found = resolve(access.core, text, view=access.view)
        if access.reads_all or access.reaches(found.digest):
            return found
    except (NotFoundError, InvalidInputError):
        pass
    raise unknown


def _by_ref(access: RepositoryAccess, ref: str, text: str) -> Revision:
    commit = access.refs().get(ref)
    if commit is None:
        raise NotFoundError(f"{text!r:.120} names nothing that {access.caller.name} may read")
    return Revision(commit, read_commit(access.core.objects, commit), ref)
