"""Revision syntax: text such as ``main~2`` resolved to a commit.

Branch, tag, full or unique short digest (8 digits or more), `HEAD`, and after any of them `~n`,
`^n`, `@{n}`, `@{moment}`: git's forms. Nothing here reads a workspace; its HEAD comes in as an
argument.

Source:
    docs/spec/names.md, section "Revisions".
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import msgspec

from tensorrepo.repo.changes.moments import moment_text, parse_moment
from tensorrepo.repo.changes.refs import BRANCHES, REMOTES, TAGS, describe_ref, places
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import Commit, commit_lines, read_commit
from tensorrepo.repo.ids import SHORT_DIGITS, Digest, parse_digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.repo.tables import RecordTable, Shown

_REVISION = re.compile(r"(?P<name>(?=@\{)|.+?)(?P<steps>(?:~\d*|\^\d*|@\{[^{}]+\})*)", re.DOTALL)
_STEP = re.compile(r"~(?P<back>\d*)|\^(?P<parent>\d*)|@\{(?:(?P<ago>\d+)|(?P<moment>[^{}]+))\}")
_BRACES = re.compile(r"\{[^{}]*\}")
_DIGITS = re.compile(r"[0-9a-f]+")


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a workspace stands: on a branch, or at a commit (detached)."""

    branch: str | None = None
    commit: Digest | None = None

    def __post_init__(self) -> None:
        if (self.branch is None) == (self.commit is None):
            raise ValueError("a HEAD is a branch or a commit")
        if self.commit is not None:
            parse_digest(self.commit)


@dataclass(frozen=True, slots=True, repr=False)
class Revision(Shown):
    """A commit that was named. `ref` is the ref itself when the text was just its name."""

    digest: Digest
    commit: Commit
    ref: str | None
    warning: str | None = None

    def to_table(self) -> RecordTable:
        """The commit, and the ref that names it."""
        named = () if self.ref is None else (f"named by {self.ref}",)
        return RecordTable((*commit_lines(self.digest, self.commit), *named))


def resolve(
    repository: RepositoryCore,
    text: str,
    *,
    head: Head | None = None,
    view: LogView | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Revision:
    """The commit that `text` names.

    Args:
        repository: where to look.
        text: see the module's docstring.
        head: what ``HEAD`` means; None where there is no workspace.
        view: a view read just now, instead of reading the log again.
        clock: UTC in ns, for what was ``yesterday``.

    Raises:
        NotFoundError: nothing of that name; near names are suggested.
        InvalidInputError: a short digest of several objects, or no revision at all.
    """
    at = view or repository.log.refresh()
    parts = _REVISION.fullmatch(text)
    if parts is None:
        raise InvalidInputError(f"{text!r} is no revision: expected a branch, tag or digest")
    digest, ref, warning = _name(repository, parts["name"] or "HEAD", head, at)
    for step in _STEP.finditer(parts["steps"]):
        digest = _walk(repository, text, digest, ref, step, at, clock)
        ref = None
    return Revision(digest, read_commit(repository.objects, digest), ref, warning)


def split_path(text: str) -> tuple[str, str | None]:
    """``REF:path`` as (REF, path); ``HEAD`` stands for an empty REF.

    >>> split_path("v1:datasets/photos"), split_path(":models/m"), split_path("main")
    (('v1', 'datasets/photos'), ('HEAD', 'models/m'), ('main', None))
    >>> split_path("main@{2026-11-01 12:00}:datasets/photos")
    ('main@{2026-11-01 12:00}', 'datasets/photos')
    """
    # The colon of a moment is none.
    at = _BRACES.sub(lambda found: "-" * len(found[0]), text).find(":")
    return (text, None) if at < 0 else (text[:at] or "HEAD", text[at + 1 :])


def split_at(text: str) -> tuple[str, str] | None:
    """``PATH@REF`` as (PATH, REF); None where no ``@REF`` follows a path.

    >>> split_at("models/m@v1"), split_at("models/m"), split_at("main@{yesterday}")
    (('models/m', 'v1'), None, None)
    """
    path, at, ref = text.partition("@")
    return (path, ref) if at and path and ref and not ref.startswith("{") else None


def base_name(text: str) -> str:
    """The name in a revision, without what follows it: ``main`` of ``main~2``."""
    parts = _REVISION.fullmatch(text)
    return text if parts is None else parts["name"] or "HEAD"


def _name(
    repository: RepositoryCore, name: str, head: Head | None, view: LogView
) -> tuple[Digest, str | None, str | None]:
    if name in ("HEAD", "@"):
        return (*_head(head, view), None)
    branch, tag = view.state.refs.get(BRANCHES + name), view.state.refs.get(TAGS + name)
    if branch is not None:
        both = f"{name!r} is both a branch and a tag; the branch was taken" if tag else None
        return branch, BRANCHES + name, both
    if tag is not None:
        return tag, TAGS + name, None
    for ref in (name, REMOTES + name):
        if ref in view.state.refs:
            return view.state.refs[ref], ref, None
    if len(name) >= SHORT_DIGITS and _DIGITS.fullmatch(name):
        return _short(repository, name), None, None
    raise NotFoundError(_unknown(name, view))


def _head(head: Head | None, view: LogView) -> tuple[Digest, str | None]:
    if head is None:
        raise InvalidInputError("HEAD means something in a workspace only: name a branch or a tag")
    if head.commit is not None:
        return head.commit, None
    ref = BRANCHES + str(head.branch)
    if ref not in view.state.refs:
        raise NotFoundError(
            f"branch {head.branch!r} has no commit yet. Stage something with `tensorrepo add` and "
            "run `tensorrepo commit`."
        )
    return view.state.refs[ref], ref


def _short(repository: RepositoryCore, digits: str) -> Digest:
    if len(digits) > 64:
        raise NotFoundError(f"no commit {digits:.70}: a digest has 64 digits")
    objects = repository.objects
    found = [
        digest for digest in objects.find(digits) if objects.describe(digest).kind is Kind.COMMIT
    ]
    if not found:
        raise NotFoundError(f"no commit begins with {digits}. `tensorrepo log` lists them.")
    if len(found) > 1:
        listed = ", ".join(digest[:16] for digest in sorted(found)[:4])
        raise InvalidInputError(f"{digits} is ambiguous: {listed}. Give more digits.")
    return found[0]


def _walk(
    repository: RepositoryCore,
    text: str,
    digest: Digest,
    ref: str | None,
    step: re.Match[str],
    view: LogView,
    clock: Callable[[], int],
) -> Digest:
    if step["ago"] is not None:
        return _ago(repository, text, ref, int(step["ago"]), view)
    if step["moment"] is not None:
        return _as_of(repository, text, ref, step["moment"], view, clock())
    if step["parent"] is not None:
        return _parent(repository, text, digest, int(step["parent"] or 1))
    for _ in range(int(step["back"] or 1)):
        digest = _parent(repository, text, digest, 1)
    return digest


def _parent(repository: RepositoryCore, text: str, digest: Digest, number: int) -> Digest:
    found = read_commit(repository.objects, digest)
    parents = found.parents
    if number == 0:
        return digest
    if found.beyond:
        raise CommitExpired(
            f"{text}: the parents of commit {digest:.12} are not in this repository, whose "
            "history ends there"
        )
    if number > len(parents):
        raise NotFoundError(
            f"{text}: commit {digest:.12} has {len(parents)} parents, there is no number {number}"
        )
    return parents[number - 1]


def _ago(
    repository: RepositoryCore, text: str, ref: str | None, count: int, view: LogView
) -> Digest:
    ref = _moved(text, ref)
    if count == 0:
        return view.state.refs[ref]
    seen = 0
    for move in places(repository, ref, view):
        seen += 1
        if seen == count:
            if move.update.old is None:
                break
            return move.update.old
    raise NotFoundError(
        f"{text}: the log knows {max(seen - 1, 0)} older places of {describe_ref(ref)}"
    )


def _as_of(
    repository: RepositoryCore, text: str, ref: str | None, moment: str, view: LogView, now_ns: int
) -> Digest:
    """Where a ref stood at a moment: after the newest record of its time or before."""
    ref, at_ns = _moved(text, ref), parse_moment(moment, now_ns=now_ns)
    first = None
    for move in places(repository, ref, view):
        first = move
        if move.entry.time_ns <= at_ns:
            if move.update.new is None:
                when = moment_text(move.entry.time_ns)
                raise NotFoundError(f"{text}: {describe_ref(ref)} was gone then, since {when}")
            return move.update.new
    if first is None:
        raise NotFoundError(f"{text}: the log knows no place of {describe_ref(ref)}")
    raise NotFoundError(
        f"{text}: that is {moment_text(at_ns)}; {describe_ref(ref)} is known from "
        f"{moment_text(first.entry.time_ns)} on. `tensorrepo reflog` lists where it was."
    )


def _moved(text: str, ref: str | None) -> str:
    if ref is None:
        raise InvalidInputError(f"{text}: @{{...}} asks for the past of a ref: put a branch before")
    return ref


def _unknown(name: str, view: LogView) -> str:
    if not view.state.refs:
        return f"{name!r:.100}: the repository has no commit yet. Make one by `tensorrepo commit`."
    known, others = [], []
    for ref in sorted(view.state.refs):
        if ref.startswith((BRANCHES, TAGS)):
            known.append(ref.split("/", 1)[1])
        else:  # of runs, say, which have no short name
            others.append(ref)
    unknown = f"no branch, tag or commit {name!r:.100}"
    if inside := [ref for ref in others if ref.startswith(f"{name}/")]:
        return f"{unknown}. {there_are(inside, '')}"
    if not known:
        return f"{unknown}, for no branch was made yet. {there_are(others, '')}"
    folder = name.rpartition("/")[0]
    beside = [ref for ref in others if folder and ref.startswith(f"{folder}/")]
    return f"{unknown}.{did_you_mean(name, [*known, *beside], '`tensorrepo branch` lists them.')}"
