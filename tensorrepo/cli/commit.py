"""Commands that make commits: `commit` and its editor, `merge`, `revert`, `cherry-pick`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import CommandCall, complete_ref, signing_repository
from tensorrepo.repo.changes import merge_branches
from tensorrepo.repo.changes.transaction import LandedCommit
from tensorrepo.repo.errors import ConflictError, Error, InvalidInputError
from tensorrepo.repo.history.commits import MAX_CHANGED, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.committing import amend_staged, amendable, commit_staged
from tensorrepo.workspace.picking import (
    check_strategy,
    commits_meant,
    merge_strategies,
    prepare,
    refuse_staged,
)
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.status import status

_NAMED_BY = ("GIT_EDITOR", "VISUAL", "EDITOR")
_USUAL = ("vi", "nano")
_COMMENT = "#"
_ADVICE = "Give the message with -m, or name another editor in GIT_EDITOR, VISUAL or EDITOR."


def commit_command(
    call: CommandCall,
    message: Annotated[
        list[str] | None,
        Option("-m", "--message", help="What, and why; each further one is a paragraph."),
    ] = None,
    everything: Annotated[
        bool,
        Option("-a", "--tracked", help="Stage first what changed of files that checkout wrote."),
    ] = False,
    amend: Annotated[
        bool, Option("--amend", help="Replace the last commit, which must be yours.")
    ] = False,
    no_edit: Annotated[bool, Option("--no-edit", help="Of --amend: keep the message.")] = False,
    sign: Annotated[
        bool, Option("-S", "--sign", help="Sign it with the key of `user.signingkey`.")
    ] = False,
) -> None:
    """Record what is staged, as one commit.

    Without -m an editor asks for the message: GIT_EDITOR, VISUAL or EDITOR. When the branch moved
    meanwhile, the change is merged onto it. In a conflict nothing changes and what is staged is
    kept. Nothing staged: exit code 1.

    Examples:
        tensorrepo commit -m "Add the pictures of March"
        tensorrepo commit -a -m "Mend labels" -m "Those of the second batch were shifted."
        tensorrepo commit --amend --no-edit
        tensorrepo commit -S -m "Sign what everybody trains on"
    """
    if no_edit and not amend:
        raise InvalidInputError("--no-edit keeps the message of a commit: it goes with --amend")
    session = replace(call.session, repository=signing_repository(call)) if sign else call.session
    if everything:
        _stage_changed(call)
    text = None if no_edit else "\n\n".join(message) if message else _written(session, amend=amend)
    try:
        with session.here.locked():
            outcome = amend_staged(session, text) if amend else commit_staged(session, text or "")
    except Error:
        if text and not message:
            output.note(f"your message is kept in {session.here.message_file}")
        raise
    made = outcome.made
    if outcome.earlier is not None:
        value = {"commit": outcome.earlier, "branch": session.head and session.head.branch}
        line = f"What was staged is committed already, as {outcome.earlier:.12}: nothing is left."
        call.answer(value, line)
        return
    if made is None:
        what = "amend: give another message, or" if amend else "commit:"
        output.note(f"nothing to {what} stage something with `tensorrepo add`")
        raise Exit(NOTHING_TO_DO)
    branch = session.branch()
    call.answer(committed_json(branch, made), *committed_lines(branch, made))


def _stage_changed(call: CommandCall) -> None:
    """Stage what changed of the working files, and say so."""
    session = call.session
    with session.here.locked(), output.progress("adding", None) as advance:
        added, gone = lazy.add_changed(session, advance)
    for each in () if call.as_json else added:
        for note in each.notes:
            output.note(f"note: {note}")
    for path in gone:
        output.note(
            f"left {path}: it is gone from disk. `tensorrepo rm` removes it from the next commit, "
            "`tensorrepo checkout HEAD` writes it again"
        )


def _written(session: WorkspaceSession, *, amend: bool) -> str:
    """The message that the user writes in an editor; nothing may be staged meanwhile.

    Raises:
        InvalidInputError: nobody can be asked, or nothing was written.
        ConflictError: something else is staged than the editor has shown.
    """
    again = "--amend " if amend else ""
    if not is_person() and not names_editor(session.machine.environment):
        keep = ", or --no-edit to keep the one it has" if amend else ""
        raise InvalidInputError(
            f"a commit needs a message: there is no terminal to write one at, and none of "
            f"GIT_EDITOR, VISUAL and EDITOR names an editor. `tensorrepo commit {again}-m MESSAGE`"
            f"{keep}"
        )
    old = read_commit(session.repository.objects, amendable(session)).message if amend else ""
    state = status(session)
    if state.head.branch is None or not (state.staged or amend):
        return ""  # there is nothing to commit, or no branch for it: that comes first
    staging, file = session.here.staging(), session.here.message_file
    remarks = [
        "Say what changes, and why. Lines that begin with # are left out, and an empty message",
        "commits nothing.",
        "",
        f"On branch {state.head.branch or 'none'}. To be committed:",
        *(f"  {change.text}" for change in state.staged),
    ]
    text = _edited_message(file, old, remarks, session.machine.environment)
    if not text:
        raise InvalidInputError("the message is empty: nothing was committed")
    if session.here.staging() != staging:
        raise ConflictError(
            f"something else was staged while you wrote: nothing was committed. `tensorrepo "
            f"status` shows it; your message is kept in {file}"
        )
    return text


def committed_json(branch: str, made: LandedCommit) -> dict[str, Any]:
    """A commit that was made, for programs; `changed` is null when there are more than it lists."""
    return {
        "commit": made.digest,
        "branch": branch,
        "onto": made.onto,
        "changed": made.commit.changed,
        "attempts": made.attempts,
    }


def committed_lines(branch: str, made: LandedCommit) -> list[str]:
    """A commit that was made, for people."""
    changed = made.commit.changed
    count = f"more than {MAX_CHANGED}" if changed is None else str(len(changed))
    subject = made.commit.message.partition("\n")[0]
    return [
        *([f"The branch had moved: merged onto {made.onto:.12}."] if made.onto else []),
        f"[{branch} {made.digest:.12}] {subject}",
        f" {count} {'entry' if count == '1' else 'entries'} changed",
    ]


def merge_command(
    call: CommandCall,
    ref: Annotated[str, Argument(help="A branch or any commit.", autocompletion=complete_ref)],
    message: Annotated[str | None, Option("-m", "--message", help="Of the commit.")] = None,
    strategy: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            metavar="[PATH=]STRATEGY",
            help="For conflicts: fail, ours, theirs; for models also average, slerp, "
            "task-arithmetic, ties. Of one path, or of all.",
        ),
    ] = None,
    commit: Annotated[
        bool, Option("--no-ff", help="Make a commit also where moving forward is enough.")
    ] = False,
) -> None:
    """Join another branch into this one: one merge commit, or nothing.

    Rows, cells and columns of a dataset that both sides changed are joined. There is no half-merged
    state: in a conflict nothing changes, and the message says which paths and cells, and why.
    Tensors of a model that one side changed are joined, too; what both changed is blended only by a
    strategy that says so.

    Examples:
        tensorrepo merge cleaning
        tensorrepo merge cleaning --strategy theirs
        tensorrepo merge tuning --strategy models/net=average
    """
    session = call.session
    general, by_path = merge_strategies(session, strategy or [], ref)
    branch = session.branch()
    with session.here.locked():
        refuse_staged(session)
        outcome = merge_branches.merge(
            session.repository,
            branch,
            session.resolve(ref).digest,
            author=session.author(),
            message=message or f"Merge {ref} into {branch}",
            called=ref,
            strategy=general,
            by_path=by_path,
            fast_forward=not commit,
        )
    _report_merge(call, branch, ref, outcome)


def _report_merge(
    call: CommandCall, branch: str, ref: str, outcome: merge_branches.MergeOutcome
) -> None:
    made = outcome.committed
    value: dict[str, Any] = {
        "branch": branch,
        "commit": outcome.forwarded,
        "forwarded": bool(outcome.forwarded),
    }
    if made is not None:
        changed = made.commit.changed or ()
        value |= {"commit": made.digest, "changed": changed}
        lines = [f"[{branch} {made.digest:.12}] merged {ref}", *(f"  {path}" for path in changed)]
    elif outcome.forwarded is not None:
        lines = [f"Branch {branch} moved forward to {outcome.forwarded:.12}."]
    else:
        lines = [f"{branch} has all of {ref} already."]
    call.answer(value, *lines)


MainlineOption = Annotated[
    int | None,
    Option("--mainline", metavar="N", help="Of a merge: the parent, from 1, whose side stays."),
]
MessageOption = Annotated[
    str | None, Option("-m", "--message", help="Of the commit; else made from the old one.")
]
StrategyOption = Annotated[str, Option("--strategy", help="For conflicts: fail, ours or theirs.")]


def revert_command(
    call: CommandCall,
    ref: Annotated[str, Argument(help="The commit to take back.", autocompletion=complete_ref)],
    mainline: MainlineOption = None,
    message: MessageOption = None,
    strategy: StrategyOption = "fail",
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
    session = call.session
    branch = session.branch()
    with session.here.locked():
        commit = session.resolve(ref).digest
        prepare(session, [commit], revert=True, mainline=mainline)
        made = merge_branches.revert(
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
    call.answer(value, *committed_lines(branch, made))


def cherry_pick_command(
    call: CommandCall,
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
    session = call.session
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
        value = [committed_json(branch, new) | {"picked": commit} for commit, new in made]
        call.answer(value, *(line for _, new in made for line in committed_lines(branch, new)))
    if stop is not None:
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
    session: WorkspaceSession, branch: str, commits: list[Digest], options: dict[str, Any]
) -> tuple[list[tuple[Digest, LandedCommit]], list[Digest], Error | None]:
    """The picked commits with their copies; what is left, and the error that it was left for."""
    author = session.author()
    made: list[tuple[Digest, LandedCommit]] = []
    for at, commit in enumerate(commits):
        try:
            new = merge_branches.cherry_pick(
                session.repository, branch, commit, committer=author, **options
            )
        except Error as error:
            return made, commits[at:], error
        if new is None:
            output.note(f"{branch} has all that {commit:.12} changed: no commit was made of it")
        else:
            made.append((commit, new))
    return made, [], None


def is_person() -> bool:
    """Whether a person sits at the terminal, who can be asked for a message."""
    return sys.stdin.isatty() and output.is_terminal()


def names_editor(environment: Mapping[str, str]) -> bool:
    """Whether the user chose an editor: it is started without a terminal, too, as git does."""
    return any(_named(environment))


def _named(environment: Mapping[str, str]) -> Iterator[str]:
    """What names an editor, in git's order; VISUAL is of terminals that can move the cursor."""
    dumb = environment.get("TERM", "dumb") == "dumb"
    for name in _NAMED_BY:
        if environment.get(name) and not (dumb and name == "VISUAL"):
            yield environment[name]


def _edited_message(
    file: Path, message: str, remarks: Iterable[str], environment: Mapping[str, str]
) -> str:
    """The message that the user wrote into `file`, which stays; "" where there is none.

    Args:
        file: where the editor finds it.
        message: what it begins with.
        remarks: lines that the editor shows behind it as comments.
        environment: names the editor: GIT_EDITOR, VISUAL or EDITOR; else vi or nano.

    Raises:
        InvalidInputError: there is no editor, it cannot be started, or it failed.
    """
    words = _editor_command(environment)
    comments = "".join(f"{_COMMENT} {remark}".rstrip() + "\n" for remark in remarks)
    file.write_text(f"{message}\n\n{comments}", encoding="utf-8")
    try:
        done = subprocess.run([*words, str(file)], check=False)  # noqa: S603  the user's own
    except OSError as error:
        raise InvalidInputError(f"editor {words[0]}: {error.strerror}. {_ADVICE}") from error
    if done.returncode:
        raise InvalidInputError(
            f"editor {words[0]} ended with {done.returncode}: nothing was committed. {_ADVICE}"
        )
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith(_COMMENT)).strip()


def _editor_command(environment: Mapping[str, str]) -> list[str]:
    """The words of the command that edits a file. Raises InvalidInputError where there is none."""
    words = shlex.split(next(_named(environment), next(filter(shutil.which, _USUAL), "")))
    if not words:
        raise InvalidInputError(f"there is no editor to write a message in. {_ADVICE}")
    return words
