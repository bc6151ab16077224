"""Exit codes of commands: a failure becomes one message on standard error and a code by its kind.

Scripts rely on these numbers: a kind may be added, no number ever changes its meaning.

Source:
    docs/reference/errors.md, section "Exit codes and HTTP statuses".
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from errno import EROFS
from types import MappingProxyType
from typing import Any

import typer

from tensorrepo.cli import output
from tensorrepo.cli.pager import paged
from tensorrepo.cli.parsing import NO_PAGER
from tensorrepo.repo.errors import Error, NotFoundError, PermissionDenied, StorageError

DONE = 0
NOTHING_TO_DO = 1  # also: differences found, where --exit-code asked for it
USAGE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h: what happened is our mistake
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE

EXIT_CODES: Mapping[str, int] = MappingProxyType(
    {
        "invalid-input": USAGE,
        "not-found": 3,
        "no-such-row": 3,
        "collected": 3,
        "missing-objects": 3,
        "expired": 3,  # was there once; to a script it is gone alike
        "purged": 3,
        "conflict": 4,
        "corrupt": 5,
        "rewound": 5,  # the log is not what it was: nothing read from it can be trusted
        "permission": 6,
        "unauthenticated": 6,
        "too-large": USAGE,
        "storage": 7,
        "rate-limited": 7,
        "unsupported": 8,
        "outcome-unknown": 9,
        "worker-lost": 10,
    }
)


def exit_code(error: Error) -> int:
    """The code that the command line ends with after `error`."""
    return EXIT_CODES[error.kind]


def guarded(function: Callable[..., None], *, is_paged: bool = False) -> Callable[..., None]:
    """`function` with failures as one message and an exit code by kind.

    `is_paged`: what it prints may be long, so that a pager shows it on a terminal.
    """

    @functools.wraps(function)
    def run(**values: Any) -> None:
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        with output.answering(as_json=bool(values.get("as_json"))):
            _run(**values)

    def _run(**values: Any) -> None:
        wanted = is_paged and not (values["as_json"] or values["context"].meta.get(NO_PAGER))
        is_shown = False  # by a pager
        try:
            with paged() if wanted else nullcontext(False) as is_shown:
                function(**values)
                output.flush()  # here, where a reader that left can be told from a mistake
        except Error as error:
            output.failure(error, exit_code(error))
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt as stopped:
            # An append that was interrupted under way has raised CommitOutcomeUnknown instead.
            hint = str(stopped) or "`tensorrepo status` shows where things stand"
            if not is_shown:
                output.note(f"interrupted. {hint}")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            output.give_up()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            failure = _of_system(error)
            output.failure(failure, exit_code(failure))
            raise typer.Exit(exit_code(failure)) from None
        except typer.Exit:
            raise
        except Exception as error:
            if os.environ.get("TENSORREPO_DEBUG"):
                raise
            output.bug(error, BUG)
            raise typer.Exit(BUG) from None

    return run


def _of_system(error: OSError) -> Error:
    """What the operating system refused, as one of our errors."""
    where = f"{error.filename}: " if error.filename else ""
    text = f"{where}{error.strerror or error}"
    if isinstance(error, PermissionError) or error.errno == EROFS:
        return PermissionDenied(f"{text}. Check who may use it, or choose another place.")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(text)
    return StorageError(text)
