"""Running a command for every new commit: the command `watch`."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Annotated, Final

from typer import Argument, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.history import headline
from tensorrepo.cli.options import RepoCall, complete_ref
from tensorrepo.cli.parsing import AFTER_DASHES
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.watching import WatchedCommit, watch

COMMIT_VARIABLE: Final = "TENSORREPO_COMMIT"
BEFORE_VARIABLE: Final = "TENSORREPO_BEFORE"
REF_VARIABLE: Final = "TENSORREPO_REF"
END_SECONDS: Final = 10.0  # for a command to end by itself after Ctrl-C
_POLICIES: Final = ("stop", "continue", "retry")
_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 60.0
_SIGNALS: Final = 128  # as shells have it: 128 and the number of the signal


def watch_command(
    call: RepoCall,
    ref: Annotated[
        str, Argument(metavar="[REF]", help="A branch.", autocompletion=complete_ref)
    ] = "main",
    behind: Annotated[
        str | None,
        Option(
            "--behind", metavar="REF", help="Begin behind this commit.", autocompletion=complete_ref
        ),
    ] = None,
    path: Annotated[
        str, Option("--path", metavar="PATH", help="Only commits that changed this entry.")
    ] = "",
    newest: Annotated[
        bool, Option("--newest", help="Pass over what came while the command ran, but the newest.")
    ] = False,
    on_failure: Annotated[
        str,
        Option(
            "--on-failure",
            metavar="stop|continue|retry",
            help="When the command fails: stop, go on with the next commit, or run it again.",
        ),
    ] = "stop",
    number: Annotated[
        int | None, Option("--limit", "-n", metavar="COUNT", help="End after so many commits.")
    ] = None,
    timeout: Annotated[
        str | None,
        Option("--timeout", metavar="SPAN", help="End when none comes for so long, as in 1h."),
    ] = None,
    poll: Annotated[
        float, Option("--poll", metavar="SECONDS", help="Between two looks at a store.", min=0.01)
    ] = 2.0,
) -> None:
    """Run a command for every new commit of a branch, oldest first; or print the commits.

    The command finds the commit in TENSORREPO_COMMIT, the one that came before it in
    TENSORREPO_BEFORE (empty where there is none), and the whole name of the ref in TENSORREPO_REF.
    Behind a service commits are told as they come; else the log is looked at every 2 s.

    Ctrl-C ends it when the command has ended, and says where to go on.

    Examples:
        tensorrepo watch main -- python train.py
        tensorrepo watch main --path datasets/photos --newest -- make report
        tensorrepo watch main --behind v1 --on-failure retry -- ./deploy.sh
        tensorrepo watch main -n 1 --timeout 1h
    """
    if on_failure not in _POLICIES:
        raise InvalidInputError(f"--on-failure {on_failure!r}: expected {', '.join(_POLICIES)}")
    core, resolve = call.session.repository, call.session.resolve
    start = None if behind is None else resolve(behind).digest
    coming = watch(
        core,
        ref,
        start,
        path=path,
        newest=newest,
        poll_seconds=poll,
        timeout_seconds=None if timeout is None else parse_span(timeout),
    )
    words = list(call.context.meta.get(AFTER_DASHES, ()))
    _work(call, coming, words, on_failure, number)


def _work(
    call: RepoCall,
    coming: Iterator[WatchedCommit],
    words: list[str],
    policy: str,
    number: int | None,
) -> None:
    """Run the command for each commit that comes, or show it."""
    done: WatchedCommit | None = None
    try:
        for count, new in enumerate(coming, 1):
            if words:
                _run_until_done(call, new, words, policy)
            else:
                _show(call, new)
            done = new
            if count == number:
                return
    except KeyboardInterrupt:
        hint = "no commit had come" if done is None else f"go on with --behind {done.digest:.12}"
        raise KeyboardInterrupt(hint) from None
    raise Exit(NOTHING_TO_DO)  # none came in time


def _show(call: RepoCall, new: WatchedCommit) -> None:
    if call.as_json:
        output.json_value(
            {
                "ref": new.ref,
                "commit": new.digest,
                "before": new.before,
                "author": new.commit.author,
                "message": new.commit.message,
            }
        )
    else:
        output.styled(headline(new.digest, new.commit, {}))
    output.flush()  # whoever reads them waits for them


def _run_until_done(call: RepoCall, new: WatchedCommit, words: list[str], policy: str) -> None:
    """Run the command, again if the policy says so.

    Raises:
        Exit: it failed, and the policy is to stop: with its code.
    """
    wait = _FIRST_RETRY_SECONDS
    while code := _run(call, new, words):
        where = f"{words[0]} failed with {code} for commit {new.digest:.12}"
        if policy == "continue":
            output.note(f"{where}. Going on with the next.")
            return
        if policy == "stop":
            output.note(f"{where}. Mend it and go on with --behind {new.before or new.digest:.12}")
            raise Exit(code if 0 < code < _SIGNALS else _SIGNALS - code)
        output.note(f"{where}. Running it again in {wait:.0f} s.")
        time.sleep(wait)
        wait = min(2 * wait, _LAST_RETRY_SECONDS)


def _run(call: RepoCall, new: WatchedCommit, words: list[str]) -> int:
    """The command's exit code; below 0 the signal that ended it."""
    told = {
        COMMIT_VARIABLE: new.digest,
        BEFORE_VARIABLE: new.before or "",
        REF_VARIABLE: new.ref,
    }
    environment = {**call.machine.environment, **told}
    to = 2 if call.as_json else None  # standard output is for the answer
    # Ctrl-C while it is being started would leave it to itself: it counts once it has begun.
    interrupted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if callable(before):  # else it is ignored, as in the background of a shell: by the command, too
        signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        running = subprocess.Popen(words, cwd=call.machine.cwd, env=environment, stdout=to)  # noqa: S603  the user's own
    except OSError as error:
        raise InvalidInputError(f"cannot run {words[0]}: {error.strerror}") from error
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)
    with running:
        try:
            if not interrupted:
                return running.wait()
        except KeyboardInterrupt:
            pass
        # It got the signal, too, if it came from the terminal: let it end by itself.
        _end(running)
        raise KeyboardInterrupt


def _end(running: subprocess.Popen[bytes]) -> None:
    try:
        running.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        running.terminate()
    except KeyboardInterrupt:
        running.kill()
