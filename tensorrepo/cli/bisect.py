"""Search for the commit that broke something: the command `bisect`."""

from __future__ import annotations

import subprocess
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.branches import describe_head
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.history import headline, names_of
from tensorrepo.cli.options import CommandCall, complete_ref
from tensorrepo.cli.parsing import AFTER_DASHES
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.bisect import BisectStep
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.bisect import BAD, GOOD, SKIP, end, going_on, start, tell

_SKIPPED = 125  # what a script ends with when it cannot tell
_FAILED = 126  # and above: the shell's own codes, and signals

_ACTIONS = ("start", "good", "bad", "skip", "reset", "log", "run")


def bisect_command(
    call: CommandCall,
    action: Annotated[str, Argument(metavar="start|good|bad|skip|reset|log|run")],
    words: Annotated[
        list[str] | None,
        Argument(metavar="REF|CMD", help="Else HEAD.", autocompletion=complete_ref),
    ] = None,
    update: Annotated[
        bool, Option("--update", help="Of start: write clean tracked files anew at each step.")
    ] = False,
) -> None:
    """Find the commit that broke something, by trying half of what is left at a time.

    `start [BAD [GOOD...]]` begins; HEAD moves to the commit to try, and `good`, `bad` or `skip`
    says what it is. `run CMD` does so by itself: CMD ends with 0 for good, 125 to skip, 1 to 124
    for bad. `reset` goes back to where it began, `log` tells what was said.

    Examples:
        tensorrepo bisect start main v1
        tensorrepo bisect bad
        tensorrepo bisect run python check.py --at-most 0.1
        tensorrepo bisect reset
    """
    if action not in _ACTIONS:
        raise InvalidInputError(f"no action {action!r}: there are {', '.join(_ACTIONS)}")
    if update and action != "start":
        raise InvalidInputError("--update goes with start")
    refs = words or []
    if action == "run":
        _run(call, list(call.context.meta.get(AFTER_DASHES, ())))
    elif action == "log":
        _log(call)
    elif action == "reset":
        _reset(call, refs)
    elif action == "start":
        _start(call, refs, update=update)
    else:
        _show(call, _tell(call, action, refs or ["HEAD"]))


def _start(call: CommandCall, refs: list[str], *, update: bool) -> None:
    session = call.session
    told = [session.resolve(ref).digest for ref in refs]
    bad, good = told[:1], told[1:]
    with session.here.locked():
        start(session, update=update)
        step = tell(session, BAD, bad)
        step = tell(session, GOOD, good) if good else step
    _show(call, step)


def _tell(call: CommandCall, verdict: str, refs: list[str]) -> BisectStep | None:
    session = call.session
    with session.here.locked():
        return tell(session, verdict, [session.resolve(ref).digest for ref in refs])


def _run(call: CommandCall, words: list[str]) -> None:
    """Try commits by a command until the first bad one is known."""
    if not words:
        raise InvalidInputError("run what? `tensorrepo bisect run CMD`: 0 is good, 1 to 124 bad")
    session = call.session
    with session.here.locked():
        step = tell(session, SKIP, [])
    if step is None:
        raise InvalidInputError(
            "a good and a bad commit must be known: `tensorrepo bisect start BAD GOOD`"
        )
    while step is not None and step.commit is not None:
        output.note(f"trying {_line(call, step.commit)}")
        step = _tell(call, _verdict(call, words), ["HEAD"])
    _show(call, step)


def _verdict(call: CommandCall, words: list[str]) -> str:
    to = 2 if call.as_json else None  # standard output is for the answer
    try:
        code = subprocess.run(words, cwd=call.machine.cwd, stdout=to, check=False).returncode  # noqa: S603  the user's own
    except OSError as error:
        raise InvalidInputError(f"cannot run {words[0]}: {error.strerror}") from error
    if code < 0 or code >= _FAILED:
        raise InvalidInputError(
            f"{words[0]} ended with {code}, which says neither good (0) nor bad (1 to 124). HEAD "
            "stays at the commit that was tried: mend the command and run it again."
        )
    return GOOD if code == 0 else SKIP if code == _SKIPPED else BAD


def _reset(call: CommandCall, refs: list[str]) -> None:
    if len(refs) > 1:
        raise InvalidInputError(f"reset goes to one commit, got {' '.join(refs)}")
    session = call.session
    with session.here.locked():
        head = end(session, refs[0] if refs else None)
    value = {"branch": head.branch, "commit": session.tip_of(head)}
    call.answer(value, describe_head(head))


def _log(call: CommandCall) -> None:
    verdicts = going_on(call.session).verdicts
    value = [{"verdict": verdict, "commit": commit} for verdict, commit in verdicts]
    lines = (f"tensorrepo bisect {verdict} {_line(call, commit)}" for verdict, commit in verdicts)
    call.answer(value, "tensorrepo bisect start", *lines)


def _show(call: CommandCall, step: BisectStep | None) -> None:
    """Tell what is next, or what was found."""
    if step is None:
        call.answer(
            _document(None),
            "Say which commits are good and bad: `tensorrepo bisect good REF`, `bisect bad REF`.",
        )
    elif call.as_json:
        output.json_value(_document(step))
    elif step.commit is not None:
        _show_next(call, step)
    elif step.found is not None:
        output.line(f"{step.found} is the first bad commit")
        commit = read_commit(call.session.repository.objects, step.found)
        output.styled(headline(step.found, commit, names_of(call.session)))
        output.note("`tensorrepo bisect reset` goes back to where you were.")
    else:
        output.line("Only skipped commits are left. The first bad one is one of:")
        output.lines(f"  {_line(call, commit)}" for commit in step.candidates)
    if step is not None and step.commit is None and step.found is None:
        raise Exit(NOTHING_TO_DO)


def _show_next(call: CommandCall, step: BisectStep) -> None:
    assert step.commit is not None, "there is one to try"
    if step.is_base:
        output.line("Where both histories met comes first: it must be good.")
    else:
        left = len(step.candidates)
        rounds = max(left - 1, 1).bit_length()
        commits, steps = output.counted(left, "commit"), output.counted(rounds, "step")
        output.line(f"Bisecting: {commits} left, about {steps}.")
    output.line(f"HEAD is at {_line(call, step.commit)}")


def _line(call: CommandCall, digest: Digest) -> str:
    commit = read_commit(call.session.repository.objects, digest)
    return f"{digest:.12}  # {commit.message.partition(chr(10))[0]}"


def _document(step: BisectStep | None) -> dict[str, Any]:
    if step is None:
        return {"next": None, "first_bad": None, "candidates": []}
    candidates = list(step.candidates)
    return {"next": step.commit, "first_bad": step.found, "candidates": candidates}
