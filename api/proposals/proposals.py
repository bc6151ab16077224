"""Who may do what with merge requests.

A request shows what its branches hold: whoever may not read both does not know of it. To write,
beside that:

    propose, update                      may write the source branch
    comment                              may write any branch
    describe, close, open again          its author; or who may write the target
    review                               may write the target, and is not the author
    report a check                       may write the ref requests/<n>/head
    merge                                may write the target, and its rules allow it

Authors are the callers' users; nothing that a client says names one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, NotFoundError, PermissionDenied
from tensorrepo.repo.history.commits import best_common, read_commit
from tensorrepo.repo.history.trees import PathChange, diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.merge_requests import editing, merging, records
from tensorrepo.repo.merge_requests.merging import Mergeability
from tensorrepo.repo.merge_requests.records import (
    CheckState,
    MergeRequest,
    RequestState,
    Verdict,
    head_ref,
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A request, the commit that it proposes and the one that its target is at; None: gone."""

    request: MergeRequest
    head: Digest | None
    onto: Digest | None


def find(access: RepositoryAccess, number: int) -> Proposal:
    """Raises NotFoundError, also for what the caller may not read."""
    view = access.view
    request = records.find_request(access.core.objects, view, number)
    if not _is_visible(access, request):
        raise NotFoundError(f"there is no merge request {number}")
    refs = view.state.refs
    return Proposal(request, refs.get(head_ref(number)), refs.get(request.target))


def listed(
    access: RepositoryAccess, *, state: RequestState | None, before: int | None
) -> Iterator[Proposal]:
    """Requests that the caller may read, the newest first; those with a number below `before`."""
    view, objects = access.view, access.core.objects
    root = records.root_at(objects, view)
    for number in reversed(records.numbers_at(objects, root)) if root is not None else ():
        if before is not None and number >= before:
            continue
        request = records.request_at(objects, root or b"", number)
        if _is_visible(access, request) and state in (None, request.state):
            refs = view.state.refs
            yield Proposal(request, refs.get(head_ref(number)), refs.get(request.target))


def propose(
    access: RepositoryAccess, *, source: str, target: str, title: str, text: str
) -> Proposal:
    """Open a request; `source` and `target` are names of branches."""
    refs = (BRANCHES + source, BRANCHES + target)
    for name, ref in zip((source, target), refs, strict=True):
        if not access.may(Action.READ, ref):  # as for one that is not there
            raise NotFoundError(f"there is no branch {name!r:.120}")
    access.require(Action.WRITE, refs[0])
    made = editing.open_request(
        access.core,
        source=refs[0],
        target=refs[1],
        title=title,
        text=text,
        author=access.caller.author,
    )
    return find(access, made.number)


def describe(
    access: RepositoryAccess, number: int, *, title: str | None, text: str | None
) -> Proposal:
    """Other words."""
    _require_own(access, find(access, number).request)
    editing.describe_request(
        access.core, number, title=title, text=text, author=access.caller.author
    )
    return find(access, number)


def update(access: RepositoryAccess, number: int) -> Proposal:
    """Propose what the source branch is at by now."""
    access.require(Action.WRITE, find(access, number).request.source)
    editing.update_head(access.core, number, author=access.caller.author)
    return find(access, number)


def comment(access: RepositoryAccess, number: int, text: str, path: str | None) -> Proposal:
    """Say something about it."""
    find(access, number)
    level = access.caller.level(access.name)
    if level is None or level < Action.WRITE:
        raise PermissionDenied(f"{access.caller.name} may write nothing in {access.name}")
    editing.add_comment(access.core, number, text, author=access.caller.author, path=path)
    return find(access, number)


def review(
    access: RepositoryAccess, number: int, verdict: Verdict, commit: Digest, text: str
) -> Proposal:
    """Approve of a commit, or do not. Nobody approves of their own."""
    request = find(access, number).request
    access.require(Action.WRITE, request.target)
    author = access.caller.author
    if author == request.author:
        raise PermissionDenied("nobody reviews what they propose themselves")
    editing.add_review(access.core, number, verdict, commit=commit, author=author, text=text)
    return find(access, number)


def report_check(
    access: RepositoryAccess,
    number: int,
    name: str,
    state: CheckState,
    *,
    commit: Digest,
    text: str,
    url: str,
) -> Proposal:
    """Say how a check went."""
    find(access, number)
    access.require(Action.WRITE, head_ref(number))
    editing.report_check(
        access.core,
        number,
        name,
        state,
        commit=commit,
        reporter=access.caller.author,
        text=text,
        url=url,
    )
    return find(access, number)


def close(access: RepositoryAccess, number: int) -> Proposal:
    """Give it up."""
    _require_own(access, find(access, number).request)
    editing.close_request(access.core, number, author=access.caller.author)
    return find(access, number)


def reopen(access: RepositoryAccess, number: int) -> Proposal:
    """Take back that it was closed."""
    _require_own(access, find(access, number).request)
    editing.reopen_request(access.core, number, author=access.caller.author)
    return find(access, number)


def merge(
    access: RepositoryAccess,
    number: int,
    *,
    head: Digest | None,
    commit: Digest | None,
    message: str | None,
) -> Proposal:
    """Merge and close it; see `merging.merge_request`.

    `commit` is one that the caller may read by a ref: a digest alone gives nobody a commit.
    """
    access.require(Action.WRITE, find(access, number).request.target)
    if commit is not None:
        access.resolve(commit)
    merging.merge_request(
        access.core,
        number,
        author=access.caller.author,
        head=head,
        commit=commit,
        message=message,
    )
    return find(access, number)


def look_at(access: RepositoryAccess, number: int) -> Mergeability:
    """Whether it can be merged as things stand."""
    return merging.look_at(access.core, access.view, find(access, number).request)


def changes(access: RepositoryAccess, number: int) -> tuple[Digest | None, Iterator[PathChange]]:
    """The commit at which source and target parted, and the paths that changed since, in order.

    Of a request that was merged, against what the target was before.
    """
    found = find(access, number)
    if found.head is None:
        raise ConflictError(f"the commit of merge request {number} is gone")
    objects = access.core.objects
    onto = found.onto
    ended = found.request.ended
    if ended is not None and ended.commit is not None:
        parents = read_commit(objects, ended.commit).parents
        onto = parents[0] if parents else onto
    bases = best_common(objects, (found.head,), (onto,)) if onto is not None else ()
    base = bases[0] if bases else None
    return base, diff(objects, tree_of(objects, base), tree_of(objects, found.head))


def _is_visible(access: RepositoryAccess, request: MergeRequest) -> bool:
    return access.may(Action.READ, request.target) and access.may(Action.READ, request.source)


def _require_own(access: RepositoryAccess, request: MergeRequest) -> None:
    """Raises PermissionDenied for who neither proposed it nor may write its target."""
    level = access.caller.level(access.name)
    is_author = access.caller.author == request.author
    if not (is_author and level is not None and level >= Action.WRITE):
        access.require(Action.WRITE, request.target)
