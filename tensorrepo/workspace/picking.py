"""Merges, reverts and cherry-picks as people ask for them: commits and strategies in words."""

from __future__ import annotations

from collections.abc import Iterable

from tensorrepo import lazy
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.history.merge_trees import pick_sides
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.committing import settle_pending
from tensorrepo.workspace.session import WorkspaceSession

STRATEGIES = ("fail", "ours", "theirs")  # a merge also blends models, which no revert undoes


def check_strategy(strategy: str) -> None:
    """Raise InvalidInputError that names the strategies for conflicts."""
    if strategy not in STRATEGIES:
        raise InvalidInputError(f"no strategy {strategy!r}: there are {', '.join(STRATEGIES)}")


def merge_strategies(
    session: WorkspaceSession, given: Iterable[str], other: str
) -> tuple[str, dict[str, str]]:
    """The strategy of all paths, and those of single ones: ``STRATEGY`` or ``PATH=STRATEGY`` each.

    `other` is the ref that is merged.

    Raises:
        InvalidInputError: no such strategy.
        NotFoundError: a path that neither side has.
    """
    general, by_path = "fail", {}
    for text in given:
        name, _, strategy = text.rpartition("=")
        if strategy not in STRATEGIES and strategy not in lazy.METHODS:
            known = ", ".join((*STRATEGIES, *lazy.METHODS))
            raise InvalidInputError(f"no strategy {strategy!r}: there are {known}")
        if not name:
            general = strategy
            continue
        try:
            _, path, _ = session.find(name)
        except NotFoundError:
            _, path, _ = session.find(f"{other}:{name}")
        by_path[path] = strategy
    return general, by_path


def refuse_staged(session: WorkspaceSession) -> None:
    """Raise ConflictError when something is staged: a merge or pick would mix with it."""
    if session.here.staging().entries:
        raise ConflictError(
            "changes are staged: `tensorrepo commit` them first, or forget them with "
            "`tensorrepo restore --staged`"
        )


def prepare(
    session: WorkspaceSession, commits: Iterable[Digest], *, revert: bool, mainline: int | None
) -> None:
    """Make sure that every one of `commits` can be tried, before the first of them is.

    Raises:
        ConflictError: something is staged.
        InvalidInputError: a merge without `mainline`, or no such parent.
        CommitOutcomeUnknown: of an earlier commit. It may be what is to be picked now.
    """
    refuse_staged(session)
    settle_pending(session)
    for commit in commits:
        pick_sides(session.repository.objects, commit, revert=revert, mainline=mainline)


def commits_meant(session: WorkspaceSession, words: Iterable[str]) -> list[Digest]:
    """The commits that `words` name, in their order; ``A..B`` is its commits, the oldest first.

    Raises:
        InvalidInputError: a range without a commit, or one commit named twice.
    """
    found: list[Digest] = []
    for word in words:
        old, dots, new = word.partition("..")
        if dots:
            found += _between(session, word, old or "HEAD", new or "HEAD")
        else:
            found.append(session.resolve(word).digest)
    twice = next((digest for digest in found if found.count(digest) > 1), None)
    if twice is not None:
        raise InvalidInputError(f"commit {twice:.12} is named twice: a change is picked once")
    return found


def _between(session: WorkspaceSession, word: str, old: str, new: str) -> list[Digest]:
    tips, hidden = [session.resolve(new).digest], [session.resolve(old).digest]
    newest_first = walk(session.repository.objects, tips, hidden=hidden)
    found = [digest for digest, _ in newest_first][::-1]
    if not found:
        raise InvalidInputError(f"{word}: {old} has all commits of {new}")
    return found
