"""Which commits are meant, and is this workspace ready to repeat or undo what they changed?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.formats.model.combine.recipe import METHODS
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history import walk
from tensorrepo.repo.merge import pick_sides
from tensorrepo.workspace.commit import settle_pending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.repo.ids import Digest
    from tensorrepo.workspace.session import Session

STRATEGIES = ("fail", "ours", "theirs")
MERGE_STRATEGIES = (*STRATEGIES, *METHODS)  # blends of models: no revert makes them


def check_strategy(strategy: str) -> None:
    """Raise InvalidInputError that names the strategies for conflicts."""
    if strategy not in STRATEGIES:
        raise InvalidInputError(f"no strategy {strategy!r}: there are {', '.join(STRATEGIES)}")


def merge_strategies(
    session: Session, given: Iterable[str], other: str
) -> tuple[str, dict[str, str]]:
    """What ``--strategy`` said: the strategy of all paths, and those of single ones.

    Args:
        session: of the command.
        given: each ``STRATEGY`` or ``PATH=STRATEGY``.
        other: the ref that is merged.

    Raises:
        InvalidInputError: no such strategy.
        NotFoundError: a path that neither side has.
    """
    general, by_path = "fail", {}
    for text in given:
        name, _, strategy = text.rpartition("=")
        if strategy not in MERGE_STRATEGIES:
            known = ", ".join(MERGE_STRATEGIES)
            raise InvalidInputError(f"no strategy {strategy!r}: there are {known}")
        if name:
            by_path[_path_of(session, name, other)] = strategy
        else:
            general = strategy
    return general, by_path


def _path_of(session: Session, name: str, other: str) -> str:
    try:
        return session.find(name)[1]
    except NotFoundError:
        return session.find(f"{other}:{name}")[1]


def refuse_staged(session: Session) -> None:
    """Raise ConflictError when something is staged: a merge or pick would mix with it."""
    if session.here.staging().entries:
        raise ConflictError(
            "changes are staged: `tensorrepo commit` them first, or forget them with "
            "`tensorrepo restore --staged`"
        )


def prepare(
    session: Session, commits: Iterable[Digest], *, revert: bool, mainline: int | None
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


def commits_meant(session: Session, words: Iterable[str]) -> list[Digest]:
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


def _between(session: Session, word: str, old: str, new: str) -> list[Digest]:
    tips, hidden = [session.resolve(new).digest], [session.resolve(old).digest]
    newest_first = walk(session.repository.objects, tips, hidden=hidden)
    found = [digest for digest, _ in newest_first][::-1]
    if not found:
        raise InvalidInputError(f"{word}: {old} has all commits of {new}")
    return found
