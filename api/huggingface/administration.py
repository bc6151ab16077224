"""Repositories, branches and tags of Hugging Face's clients: made, moved, removed.

What is a repository there is an entry here, see `foreign_names`: making one makes the entry, and
the repository that it lies in where the caller may. Branches and tags are the whole repository's.
"""

from __future__ import annotations

from typing import Final

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.grants import Action
from tensorrepo.api.foreign_names import EntrySpace, ForeignName, resolve_foreign
from tensorrepo.api.huggingface import commits
from tensorrepo.api.huggingface.errors import revision_missing
from tensorrepo.api.huggingface.repositories import MAIN, HubRepository, open_hub
from tensorrepo.api.service import Service
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.squash import squash_branch
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError

_SPACES: Final[dict[str | None, EntrySpace]] = {
    None: "models",
    "model": "models",
    "dataset": "datasets",
}


def wanted_name(
    caller: Caller, name: str, organization: str | None, kind: str | None
) -> ForeignName:
    """The repository that a client means; without an organization, in the caller's own namespace.

    Raises:
        InvalidInputError: a kind of repository that there is none of here.
    """
    caller.require_known()
    space = _SPACES.get(kind)
    if space is None:
        raise InvalidInputError(
            f"there are no repositories of type {kind!r:.40} here: models and datasets alone"
        )
    namespace, slash, last = name.partition("/")
    if slash:
        organization, name = namespace, last
    found = ForeignName(organization or caller.name, name, space)
    found.require_possible()
    if "/" in found.name:
        raise InvalidInputError(f"{found.name!r:.120}: a repository's name has no slash")
    return found


def create(service: Service, caller: Caller, name: ForeignName, *, public: bool) -> bool:
    """Make a repository; False where there is one already.

    Raises:
        InvalidInputError: it is to be public: nothing here is.
        PermissionDenied: the caller may not write there, or may not make the namespace.
    """
    if public:
        raise _public(name)
    if caller.level(name.namespace) is None:
        service.require_admin(caller, name.namespace)
    try:
        service.directory.find(name.namespace)
    except NotFoundError:
        service.require_admin(caller, name.namespace)
        service.directory.create(name.namespace)
    hub = open_hub(service, caller, name)
    found = hub.look_at(MAIN)
    if found is not None and found.exists:
        return False
    commits.make_empty(hub)
    return True


def settle(hub: HubRepository, *, public: bool, gated: bool) -> None:
    """Let a repository be private, which all are.

    Raises:
        InvalidInputError: it is to be public, or open for who asks.
    """
    hub.require_there()
    hub.access.require(Action.WRITE, f"{BRANCHES}{MAIN}")
    if public:
        raise _public(hub.name)
    if gated:
        raise InvalidInputError(
            f"{hub.id} has no gate: who may read it is said by grants of the repository "
            f"{hub.name.namespace}"
        )


def _public(name: ForeignName) -> InvalidInputError:
    return InvalidInputError(
        f"{name.id} would be public, and what may be read here is said by grants: leave "
        "`private` out, and ask an admin of the repository for a grant for others"
    )


def delete(service: Service, caller: Caller, name: ForeignName) -> None:
    """Remove a repository from every branch; see `commits.remove_repository`."""
    commits.remove_repository(open_hub(service, caller, name))


def move(service: Service, caller: Caller, source: ForeignName, target: ForeignName) -> None:
    """Give a repository another name.

    Raises:
        InvalidInputError: in another namespace, which is another repository's history.
        ConflictError: that name is taken.
    """
    hub = open_hub(service, caller, source)
    if source.namespace != target.namespace:
        raise InvalidInputError(
            f"{source.id} cannot become {target.id}: that is another repository. "
            "`tensorrepo promote` brings an entry there"
        )
    commits.rename_repository(hub, target)


def create_branch(hub: HubRepository, name: str, start: str | None) -> None:
    """A branch at a revision, else at main. Raises ConflictError."""
    name = commits.branch_name(name)
    hub.require_there()
    hub.access.require(Action.WRITE, BRANCHES + name)
    try:
        commit = resolve_foreign(hub.access, start or MAIN).digest
    except NotFoundError as error:
        raise revision_missing(hub.id, start or MAIN) from error
    if BRANCHES + name in hub.access.view.state.refs:
        raise ConflictError(f"there is a branch {name!r:.120} already")
    refs.create_branch(hub.access.core, name, commit, actor=hub.access.caller.author)


def delete_branch(hub: HubRepository, name: str) -> None:
    """Remove a branch. Raises NotFoundError; InvalidInputError for main."""
    _delete(hub, BRANCHES + commits.branch_name(name), name)


def create_tag(hub: HubRepository, name: str, revision: str, message: str) -> None:
    """A tag at a revision. Raises ConflictError."""
    hub.access.require(Action.WRITE, TAGS + name)
    commit = hub.at(revision).content.commit
    if TAGS + name in hub.access.view.state.refs:
        raise ConflictError(f"there is a tag {name!r:.120} already")
    author = hub.access.caller.author
    refs.create_tag(hub.access.core, name, commit, actor=author, note=message)


def delete_tag(hub: HubRepository, name: str) -> None:
    """Remove a tag. Raises NotFoundError."""
    _delete(hub, TAGS + name, name)


def squash(hub: HubRepository, branch: str, message: str | None) -> None:
    """Let a branch have one commit in place of its history: for admins, since it is everybody's.

    Raises:
        NotFoundError: there is no such branch.
        ConflictError: it moved meanwhile.
    """
    hub.require_there()
    hub.access.require(Action.ADMIN, BRANCHES + branch)
    if BRANCHES + branch not in hub.access.refs():
        raise revision_missing(hub.id, branch)
    said = message or f"Super-squash branch '{branch}'"
    squash_branch(hub.access.core, branch, said, author=hub.access.caller.author)


def _delete(hub: HubRepository, ref: str, name: str) -> None:
    hub.require_there()
    hub.access.require(Action.WRITE, ref)
    if ref == BRANCHES + MAIN:
        raise InvalidInputError("the branch main stays: repositories are there where it has them")
    if ref not in hub.access.refs():
        raise revision_missing(hub.id, name)
    refs.delete_ref(hub.access.core, ref, actor=hub.access.caller.author)
