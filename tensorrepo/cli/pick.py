"""`revert`, `cherry-pick`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.commit import committed_json, committed_lines
from tensorrepo.cli.common import JsonOption, session_of
from tensorrepo.cli.complete import complete_ref
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.repo import pick
from tensorrepo.repo.errors import Error, InvalidInputError
from tensorrepo.workspace.pick import check_strategy, commits_meant, prepare

if TYPE_CHECKING:
    from tensorrepo.repo.attempt import Committed
    from tensorrepo.repo.ids import Digest
    from tensorrepo.workspace.session import Session

MainlineOption = Annotated[
    int | None,
    Option("--mainline", metavar="N", help="Of a merge: the parent, from 1, whose side stays."),
]
MessageOption = Annotated[
    str | None, Option("-m", "--message", help="Of the commit; else made from the old one.")
]
StrategyOption = Annotated[str, Option("--strategy", help="For conflicts: fail, ours or theirs.")]


def revert_command(
    context: Context,
    ref: Annotated[str, Argument(help="The commit to take back.", autocompletion=complete_ref)],
    mainline: MainlineOption = None,
    message: MessageOption = None,
    strategy: StrategyOption = "fail",
    as_json: JsonOption = False,
) -> None:
    """Take back what one commit changed, as a new commit; all that came after it stays.

    Whoever made it, and however long ago. There is no half-reverted state: in a conflict nothing
    changes, and the message says which paths and why. Nothing left to take back: exit code 1.

    Examples:
        tensorrepo revert HEAD
        tensorrepo revert 3f9a01bc -m "Bring the March pictures back"
        tensorrepo revert main~2 --mainline 1
    """
    check_strategy(strategy)
    session = session_of(context)
    branch = session.branch()
    with session.here.locked(), output.conflicts_shown(as_json=as_json):
        commit = session.resolve(ref).digest
        prepare(session, [commit], revert=True, mainline=mainline)
        made = pick.revert(
            session.repository,
            branch,
            commit,
            author=session.author(),
            message=message,
            mainline=mainline,
            strategy=strategy,
        )
    if made is None:
        output.note(f"{branch} has nothing left of what {commit:.12} changed: no commit was made")
        raise Exit(NOTHING_TO_DO)
    value = committed_json(branch, made) | {"reverted": commit}
    output.answer(value, *committed_lines(branch, made), as_json=as_json)


def cherry_pick_command(
    context: Context,
    refs: Annotated[
        list[str],
        Argument(
            metavar="REF...",
            help="Commits to repeat here, in this order; A..B is all in between.",
            autocompletion=complete_ref,
        ),
    ],
    mainline: MainlineOption = None,
    message: MessageOption = None,
    strategy: StrategyOption = "fail",
    as_json: JsonOption = False,
) -> None:
    """Repeat on this branch what commits changed elsewhere: a new commit for each, in order.

    Author and message are kept. The first conflict stops it: that commit changes nothing, the ones
    before it stay. What this branch has already is left out; none is left: exit code 1.

    Examples:
        tensorrepo cherry-pick cleaning
        tensorrepo cherry-pick 3f9a01bc cleaning~1
        tensorrepo cherry-pick main..cleaning
        tensorrepo cherry-pick relabel --strategy theirs
    """
    check_strategy(strategy)
    session = session_of(context)
    branch = session.branch()
    with session.here.locked():
        commits = commits_meant(session, refs)
        if message is not None and len(commits) > 1:
            raise InvalidInputError(
                f"one message does not fit {len(commits)} commits: leave -m out, and each keeps "
                "its own, or pick them one by one"
            )
        prepare(session, commits, revert=False, mainline=mainline)
        options = {"message": message, "mainline": mainline, "strategy": strategy}
        made, left, stop = _pick_all(session, branch, commits, options)
    if made:
        _report_picked(branch, made, as_json=as_json)
    if stop is not None:
        if as_json and not made:
            output.conflicts_json(stop)
        if made:
            rest = " ".join(f"{commit:.12}" for commit in left)
            output.note(
                f"{len(made)} of {len(commits)} commits were picked, and stay. It stopped at "
                f"{left[0]:.12}. Left: `tensorrepo cherry-pick {rest}`."
            )
        raise stop
    if not made:
        raise Exit(NOTHING_TO_DO)


def _pick_all(
    session: Session, branch: str, commits: list[Digest], options: dict[str, Any]
) -> tuple[list[tuple[Digest, Committed]], list[Digest], Error | None]:
    """The picked commits with their copies; what is left, and the error that it was left for."""
    author = session.author()
    made: list[tuple[Digest, Committed]] = []
    for at, commit in enumerate(commits):
        try:
            new = pick.cherry_pick(session.repository, branch, commit, committer=author, **options)
        except Error as error:
            return made, commits[at:], error
        if new is None:
            output.note(f"{branch} has all that {commit:.12} changed: no commit was made of it")
        else:
            made.append((commit, new))
    return made, [], None


def _report_picked(branch: str, made: list[tuple[Digest, Committed]], *, as_json: bool) -> None:
    value = [committed_json(branch, new) | {"picked": commit} for commit, new in made]
    lines = [line for _, new in made for line in committed_lines(branch, new)]
    output.answer(value, *lines, as_json=as_json)
