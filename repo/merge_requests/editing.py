"""Writing of merge requests: opened, commented, reviewed, checked, moved on, closed.

Each verb appends one record, decided anew on every head, so that of two who write at once neither
loses words. Who may do it, and who `author` is, is for the caller to have asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from typing import Final

from msgspec.structs import replace

from tensorrepo.repo.changes.refs import BRANCHES, refuse_taken
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import CommitAttempt, begin, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, NotFoundError
from tensorrepo.repo.history.commits import is_ancestor
from tensorrepo.repo.history.trees import file_entry, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.merge_requests.records import (
    BRANCH,
    CheckReport,
    CheckState,
    Comment,
    Ending,
    MergeRequest,
    Review,
    Verdict,
    encode_request,
    head_ref,
    numbers_at,
    request_at,
    request_path,
    root_at,
)
from tensorrepo.repo.objects.envelope import Kind

MAX_COMMENTS: Final = 5000
_Change = Callable[[MergeRequest], MergeRequest]


@dataclass(slots=True, kw_only=True)
class RequestEdit(CommitAttempt):
    """A commit of branch `BRANCH` that changes one file; `number` None makes a new one.

    `change` gives what the file is to say at a view, `refs` the moves of refs beside it: each with
    the kind of its entry. `made` and `root` are what the last decision came to.
    """

    number: int | None
    change: Callable[[LogView, MergeRequest | None, int], MergeRequest]
    refs: Callable[[LogView, MergeRequest], tuple[tuple[str, Update], ...]]
    made: MergeRequest | None = field(default=None)
    root: bytes = field(default=b"")

    def decide(self, view: LogView) -> tuple[LogEntry, ...]:
        self._made = None  # what is changed depends on more than the branch's tip
        self.root = self._changed(view)
        return CommitAttempt.decide(self, view)

    def _changed(self, view: LogView) -> bytes:
        """The branch's tree at `view`, with the file changed."""
        objects = self.transaction.objects
        root = tree_of(objects, self.tip(view))
        number = self.number or 1 + max(numbers_at(objects, root), default=0)
        known = request_at(objects, root, number) if self.number is not None else None
        self.made = self.change(view, known, number)
        link = objects.put(Kind.BLOB, encode_request(self.made))
        return update(objects, root, {request_path(number): file_entry(link)})

    def after(self, view: LogView, moved: Update) -> tuple[LogEntry, ...]:  # noqa: ARG002
        assert self.made is not None, "the tree is composed by now"
        return tuple(
            LogEntry(self.txn, kind, self.author, self.time_ns, self.message, (one,))
            for kind, one in self.refs(view, self.made)
        )


def begin_edit(
    repository: RepositoryCore,
    number: int | None,
    change: Callable[[LogView, MergeRequest | None, int], MergeRequest],
    *,
    author: str,
    message: str,
    refs: Callable[[LogView, MergeRequest], tuple[tuple[str, Update], ...]] = lambda *_: (),
    clock: Callable[[], int] = time.time_ns,
) -> RequestEdit:
    """An edit to `run`, or to `decide` beside something else; its transaction is to be left."""
    edit = RequestEdit(
        begin(repository, BRANCH),
        lambda _: edit.root,
        message,
        author,
        clock(),
        number=number,
        change=change,
        refs=refs,
    )
    return edit


def open_request(
    repository: RepositoryCore,
    *,
    source: str,
    target: str,
    title: str,
    text: str,
    author: str,
    clock: Callable[[], int] = time.time_ns,
) -> MergeRequest:
    """Propose what `source` has beyond `target`; both are refs of branches.

    Raises:
        NotFoundError: no such branch.
        ConflictError: there is nothing to merge, or an open request proposes the same.
    """
    now = clock()

    def change(view: LogView, _: MergeRequest | None, number: int) -> MergeRequest:
        head, onto = _tip(view, source), _tip(view, target)
        if is_ancestor(repository.objects, head, onto):
            has, of = (ref.removeprefix(BRANCHES) for ref in (target, source))
            raise ConflictError(f"{has!r} has all that {of!r} has: there is nothing to merge")
        _refuse_second(repository, view, source, target)
        edit.sources = (head,)
        return MergeRequest(number, title, source, target, author, now, text)

    def refs(view: LogView, made: MergeRequest) -> tuple[tuple[str, Update], ...]:
        ref = head_ref(made.number)
        refuse_taken(view, ref)
        return (("ref-create", Update(ref, None, _tip(view, source))),)

    edit = begin_edit(
        repository, None, change, author=author, message=f"Propose {title}"[:200], refs=refs,
        clock=clock,
    )  # fmt: skip
    return _run(edit)


def edit_request(
    repository: RepositoryCore, number: int, change: _Change, *, author: str, message: str
) -> MergeRequest:
    """Change what a file says; `change` may raise, and then nothing is written."""

    def changed(_: LogView, known: MergeRequest | None, __: int) -> MergeRequest:
        assert known is not None, "an edit of a number finds its file, or raises"
        return change(known)

    return _run(begin_edit(repository, number, changed, author=author, message=message))


def describe_request(
    repository: RepositoryCore, number: int, *, title: str | None, text: str | None, author: str
) -> MergeRequest:
    """Other words; None keeps those that are."""

    def change(known: MergeRequest) -> MergeRequest:
        return replace(
            known,
            title=known.title if title is None else title,
            text=known.text if text is None else text,
        )

    return edit_request(repository, number, change, author=author, message=f"Describe {number}")


def add_comment(
    repository: RepositoryCore,
    number: int,
    text: str,
    *,
    author: str,
    path: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> MergeRequest:
    """Say something; about one path as it is in the proposed commit, where one is named."""
    now = clock()

    def change(view: LogView, known: MergeRequest | None, _: int) -> MergeRequest:
        assert known is not None, "as above"
        if len(known.comments) >= MAX_COMMENTS:
            raise ConflictError(f"merge request {number} has {MAX_COMMENTS} comments: open another")
        commit = proposed(view, number) if path is not None else None
        return replace(known, comments=(*known.comments, Comment(author, now, text, commit, path)))

    message = f"Comment on {number}"
    return _run(begin_edit(repository, number, change, author=author, message=message))


def add_review(
    repository: RepositoryCore,
    number: int,
    verdict: Verdict,
    *,
    commit: Digest,
    author: str,
    text: str = "",
    clock: Callable[[], int] = time.time_ns,
) -> MergeRequest:
    """Approve of the commit that is proposed, or do not. Raises ConflictError for another one."""
    now = clock()

    def change(view: LogView, known: MergeRequest | None, _: int) -> MergeRequest:
        assert known is not None, "as above"
        _require_open(known)
        _require_proposed(view, number, commit)
        others = tuple(one for one in known.reviews if one.author != author)
        return replace(known, reviews=(*others, Review(author, now, commit, verdict, text)))

    message = f"Review {number}: {verdict}"
    return _run(begin_edit(repository, number, change, author=author, message=message))


def report_check(
    repository: RepositoryCore,
    number: int,
    name: str,
    state: CheckState,
    *,
    commit: Digest,
    reporter: str,
    text: str = "",
    url: str = "",
    clock: Callable[[], int] = time.time_ns,
) -> MergeRequest:
    """Say how a check went on the commit that is proposed. Raises ConflictError for another."""
    report = CheckReport(reporter, clock(), commit, state, text, url)

    def change(view: LogView, known: MergeRequest | None, _: int) -> MergeRequest:
        assert known is not None, "as above"
        _require_open(known)
        _require_proposed(view, number, commit)
        return replace(known, checks={**known.checks, name: report})

    message = f"Check {name} of {number}: {state}"
    return _run(begin_edit(repository, number, change, author=reporter, message=message))


def update_head(repository: RepositoryCore, number: int, *, author: str) -> MergeRequest:
    """Propose what the source branch is at by now: approvals and checks were for what it was."""

    def change(view: LogView, known: MergeRequest | None, _: int) -> MergeRequest:
        assert known is not None, "as above"
        _require_open(known)
        edit.sources = (_tip(view, known.source),)
        return known

    def refs(view: LogView, made: MergeRequest) -> tuple[tuple[str, Update], ...]:
        old, new = proposed(view, number), _tip(view, made.source)
        return () if old == new else (("ref-reset", Update(head_ref(number), old, new)),)

    message = f"Update {number}"
    edit = begin_edit(repository, number, change, author=author, message=message, refs=refs)
    return _run(edit)


def close_request(
    repository: RepositoryCore,
    number: int,
    *,
    author: str,
    clock: Callable[[], int] = time.time_ns,
) -> MergeRequest:
    """Give up an open request."""
    ended = Ending(author, clock())

    def change(known: MergeRequest) -> MergeRequest:
        _require_open(known)
        return replace(known, state="closed", ended=ended)

    return edit_request(repository, number, change, author=author, message=f"Close {number}")


def reopen_request(repository: RepositoryCore, number: int, *, author: str) -> MergeRequest:
    """Take back that it was closed.

    Raises:
        ConflictError: it is not closed, or an open request proposes the same by now.
    """

    def change(view: LogView, known: MergeRequest | None, _: int) -> MergeRequest:
        assert known is not None, "as above"
        if known.state != "closed":
            raise ConflictError(f"merge request {number} is {known.state}: nothing to open again")
        _refuse_second(repository, view, known.source, known.target)
        return replace(known, state="open", ended=None)

    return _run(begin_edit(repository, number, change, author=author, message=f"Reopen {number}"))


def merged_edit(
    repository: RepositoryCore,
    number: int,
    head: Digest,
    *,
    author: str,
    commit: Callable[[], Digest | None],
    clock: Callable[[], int] = time.time_ns,
) -> RequestEdit:
    """The edit that says that a request was merged, to be recorded with the merge itself.

    Args:
        repository: where.
        number: number of the request.
        head: commit that was merged, which must still be the one that is proposed.
        author: who merges.
        commit: gives what the target was moved to, at the time of the decision.
        clock: UTC in ns.
    """
    now = clock()

    def change(view: LogView, known: MergeRequest | None, _: int) -> MergeRequest:
        assert known is not None, "as above"
        _require_open(known)
        _require_proposed(view, number, head)
        return replace(known, state="merged", ended=Ending(author, now, commit()))

    return begin_edit(repository, number, change, author=author, message=f"Merge {number}")


def proposed(view: LogView, number: int) -> Digest:
    """The commit that a request proposes. Raises NotFoundError."""
    found = view.state.refs.get(head_ref(number))
    if found is None:
        raise NotFoundError(f"there is no merge request {number}, or its ref was deleted")
    return found


def _refuse_second(repository: RepositoryCore, view: LogView, source: str, target: str) -> None:
    """Raises ConflictError where an open request proposes `source` for `target` already.

    Two would be reviewed apart, and the merge of one leaves the other with nothing to merge.
    """
    objects = repository.objects
    root = root_at(objects, view)
    if root is None:
        return
    for number in reversed(numbers_at(objects, root)):
        known = request_at(objects, root, number)
        if (known.state, known.source, known.target) == ("open", source, target):
            of, onto = (ref.removeprefix(BRANCHES) for ref in (source, target))
            raise ConflictError(
                f"merge request {number} proposes {of!r} for {onto!r} already, and is open: update "
                "that one to what the branch is at by now, or close it"
            )


def _require_open(request: MergeRequest) -> None:
    if request.state != "open":
        raise ConflictError(f"merge request {request.number} is {request.state}")


def _require_proposed(view: LogView, number: int, commit: Digest) -> None:
    if (now := proposed(view, number)) != commit:
        raise ConflictError(
            f"merge request {number} proposes {now:.12} by now, not {commit:.12}: look at it again"
        )


def _tip(view: LogView, ref: str) -> Digest:
    found = view.state.refs.get(ref)
    if found is None:
        raise NotFoundError(f"there is no branch {ref.removeprefix(BRANCHES)!r:.120}")
    return found


def _run(edit: RequestEdit) -> MergeRequest:
    with edit.transaction:
        edit.run()
    assert edit.made is not None, "an append ends with the decision that it stored"
    return edit.made
