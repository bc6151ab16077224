"""Pager of long answers: a program such as `less` between a command and the terminal.

As git has it: `TENSORREPO_PAGER`, else `PAGER`, else `less`, which ends by itself where all fits on
the screen. Never in pipes, never for programs. Who quits it early, or presses Ctrl-C, has seen
enough: that is no failure, and nothing is said of it.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from tensorrepo.cli import output

_LESS = "FRX"  # leave where one screen is enough, keep colors, keep the screen at the end


class _PagerInput(io.TextIOWrapper):
    """Standard output while a pager shows it: a terminal, to whoever asks for colors."""

    def isatty(self) -> bool:
        return True


def pager_command(environment: Mapping[str, str]) -> list[str]:
    """The words of the command that shows long answers; none: nothing does."""
    named = (environment[name] for name in ("TENSORREPO_PAGER", "PAGER") if name in environment)
    words = shlex.split(next(named, "less" if shutil.which("less") else ""))
    return [] if words == ["cat"] or environment.get("TERM") == "dumb" else words


@contextmanager
def paged() -> Iterator[bool]:
    """Lead standard output through a pager, if it is a terminal; gives whether one is at work."""
    words = pager_command(os.environ) if output.is_terminal() else []
    process = _started(words) if words else None
    if process is None or process.stdin is None:
        yield False
        return
    pipe = _PagerInput(process.stdin, encoding=output.encoding(), errors="replace")
    try:
        with output.led_to(pipe):
            yield True
    except BrokenPipeError:
        pass  # quit early
    finally:
        with suppress(BrokenPipeError):
            pipe.close()
        _wait(process)


def _started(words: list[str]) -> subprocess.Popen[bytes] | None:
    try:
        environment = {"LESS": _LESS, "LV": "-c", **os.environ}
        return subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)  # noqa: S603  the user's own
    except OSError as error:
        output.warning(f"pager {words[0]}: {error.strerror}")
        return None


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Leave the terminal to the pager until it ends: Ctrl-C is for it alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
