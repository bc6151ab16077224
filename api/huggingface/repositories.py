"""Repositories as Hugging Face's clients name them, opened for one caller.

``ns/name`` is an entry of the repository ``ns`` and the files beside it, see `foreign_names`. It is
there where the branch main has it. Who has no grant for ``ns`` is told the same as of a name that
does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final, get_args

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import REPOSITORY_SEGMENT
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.foreign_names import EntrySpace, ForeignName, resolve_foreign
from tensorrepo.api.huggingface.errors import repository_missing, revision_missing
from tensorrepo.api.huggingface.hub_files import HubCommit
from tensorrepo.api.requests import CallerOf, ServiceOf
from tensorrepo.api.service import Service
from tensorrepo.formats.common.summaries import summarized_model
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnauthenticatedError,
)
from tensorrepo.repo.objects.envelope import Kind

MAIN: Final = "main"
_LOOKED_AT: Final = 10_000  # entries and repositories of one list


class _NamespaceConvertor(Convertor[str]):
    """A repository of one segment, or the name of an entry below it."""

    regex = REPOSITORY_SEGMENT

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _SpaceConvertor(Convertor[str]):
    """Kinds of repositories."""

    regex = "|".join(get_args(EntrySpace))

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("namespace", _NamespaceConvertor())
register_url_convertor("entryspace", _SpaceConvertor())


@dataclass(frozen=True, slots=True)
class HubRepository:
    """One repository, as far as its caller may see it."""

    service: Service
    access: RepositoryAccess
    name: ForeignName

    @property
    def id(self) -> str:
        return self.name.id

    def at(self, revision: str) -> HubCommit:
        """The repository at a revision.

        Raises:
            NotFoundError: there is no such repository, or it has no such revision.
        """
        found = self.look_at(revision)
        if found is not None and found.exists:
            return found
        main = None if revision == MAIN else self.look_at(MAIN)
        if main is None or not main.exists:
            raise repository_missing(self.id)
        raise revision_missing(self.id, revision)

    def look_at(self, revision: str) -> HubCommit | None:
        """What a revision has of it, perhaps nothing; None: there is no such revision."""
        try:
            found = resolve_foreign(self.access, revision)
        except (NotFoundError, InvalidInputError):
            return None
        content = CommitContent(self.access, found, self.service.memory)
        return HubCommit(content, self.name, self.service.rendered)

    def require_there(self) -> None:
        """Raises NotFoundError unless main has it."""
        self.at(MAIN)


def open_hub(service: Service, caller: Caller, name: ForeignName) -> HubRepository:
    """The gate of `ns`, for a caller who may do anything at all with it.

    Raises:
        UnauthenticatedError: nobody asks.
        NotFoundError: there is none, or the caller may not know of it.
    """
    try:
        return HubRepository(service, service.enter(caller, name.namespace), name)
    except UnauthenticatedError:
        raise
    except (NotFoundError, PermissionDenied) as error:
        raise repository_missing(name.id) from error


async def hub_of(
    request: Request, service: ServiceOf, caller: CallerOf, repository: str, name: str
) -> HubRepository:
    """The repository that a route names."""
    space = request.path_params.get("space") or _space_of(request)
    wanted = ForeignName(repository, name, space)
    try:
        if service.directory.known(repository) is not None:
            return open_hub(service, caller, wanted)
        return await run_in_threadpool(open_hub, service, caller, wanted)
    except NotFoundError:
        note(request, "refusal", "no such repository, or no grant")
        raise


HubOf = Annotated[HubRepository, Depends(hub_of)]


def _space_of(request: Request) -> EntrySpace:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return "datasets" if path.startswith("/datasets/") else "models"


@dataclass(frozen=True, slots=True)
class HubListing:
    """Some repositories by name; `after` names the last where more follow."""

    found: tuple[HubCommit, ...]
    after: str | None


def list_repositories(
    service: Service,
    caller: Caller,
    space: EntrySpace,
    *,
    search: str = "",
    author: str | None = None,
    after: str = "",
    limit: int,
) -> HubListing:
    """Repositories at their branch main, of all that the caller may read.

    Args:
        service: the service.
        caller: who asks.
        space: models or datasets.
        search: text within their names, whatever its case.
        author: their namespace; None: any.
        after: id of the last one of the listing before.
        limit: largest number of them.
    """
    caller.require_known()
    wanted = (
        one
        for one in islice(_all(service, caller, space, author, after), _LOOKED_AT)
        if search.lower() in one.name.id.lower()
    )
    found = tuple(islice(wanted, limit + 1))
    kept = found[:limit]
    return HubListing(kept, kept[-1].name.id if len(found) > limit else None)


def _all(
    service: Service, caller: Caller, space: EntrySpace, author: str | None, after: str
) -> Iterator[HubCommit]:
    namespace, _, last = after.partition("/")
    for listed in service.directory.listed():
        known = listed.name
        if "/" in known or known < namespace or (author is not None and known != author):
            continue
        if caller.level(known) is None:
            continue
        hub = HubRepository(service, service.enter(caller, known), ForeignName(known, "", space))
        commit = hub.look_at(MAIN)
        if commit is None:
            continue
        for name in _names(commit, space, last if known == namespace else ""):
            yield HubCommit(commit.content, ForeignName(known, name, space), commit.rendered)


def _names(commit: HubCommit, space: EntrySpace, after: str) -> list[str]:
    """Names of repositories in a commit, behind `after`, in their order."""
    kind = Kind.MODEL if space == "models" else Kind.DATASET
    core, tree = commit.content.core, commit.content.tree
    entries = core.entries(tree, f"{space}/")
    names = {path.partition("/")[2] for path, entry in entries if entry.kind is kind}
    start, folder = f"files/{space}/", ""
    while step := next(core.entries(tree, start, after=folder), None):
        name = step[0].removeprefix(start).partition("/")[0]
        names.add(name)
        folder = f"{start}{name}/\x7f"
    return sorted(name for name in names if "/" not in name and name > after)


def tensor_count(commit: HubCommit) -> int:
    """Tensors of a model, as the tree says."""
    return (summarized_model(commit.entry) or (0, 0))[0] if commit.entry is not None else 0
