"""Errors of foreign files: damaged, missing, or on a disk that fails."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)

# Held where Python parses a literal, as headers of npy files are: CPython counts its depth for all
# threads together, and two at once may end in "AST constructor recursion depth mismatch".
LITERALS: Final = Lock()

Item = TypeVar("Item")
Made = TypeVar("Made")
_REFUSED: Final = "refused"


@contextmanager
def refusals(path: object, what: str, *damaged: type[Exception]) -> Iterator[None]:
    """Tell a damaged file from a missing one and from a failing disk.

    Args:
        path: what is being read.
        what: the format, as a sentence calls it: "gzip file".
        damaged: further exceptions by which a decoder says that the bytes are wrong.
    """
    wrong: tuple[type[Exception], ...] = (EOFError, zlib.error, *damaged)
    try:
        yield
    except Error:
        raise
    except wrong as problem:
        raise damage(path, f"not a readable {what}: {sentence(problem)}") from problem
    except FileNotFoundError as problem:
        raise NotFoundError(f"{path}: no such file") from problem
    except PermissionError as problem:
        raise PermissionDenied(f"{path}: permission denied. Check who may read it.") from problem
    except OSError as problem:
        # Decoders raise it without a number; a lying offset makes the system call invalid.
        if problem.errno in (None, EINVAL):
            raise damage(path, f"not a readable {what}: {sentence(problem)}") from problem
        raise StorageError(f"{path}: {problem.strerror}") from problem


def damage(path: object, what: str) -> InvalidInputError:
    """The error for a source that cannot be used: says where it is and what is wrong with it."""
    return InvalidInputError(f"{path}: {what}")


def together(problems: Sequence[Exception], what: str, advice: str = "") -> Error:
    """One error for all that is wrong with a source, such as ``files``; one alone is itself.

    It is an UnsupportedError where one of them is.
    """
    unsupported = any(isinstance(problem, UnsupportedError) for problem in problems)
    kind = UnsupportedError if unsupported else InvalidInputError
    if len(problems) == 1 and isinstance(problems[0], Error) and not advice:
        return problems[0]
    many = f"{len(problems)} {what}. " if len(problems) > 1 else ""
    said = " ".join(f"{str(problem).rstrip('.')}." for problem in problems)
    return kind(f"{many}{said} {advice}".rstrip())


def all_of(items: Iterable[Item], make: Callable[[Item], Made], what: str) -> list[Made]:
    """What `make` gives for each item. What it refuses is told in one error, `what` it all is.

    Raises:
        InvalidInputError, UnsupportedError: says what is wrong with each item that was refused.
    """
    made, problems = [], []
    for item in items:
        try:
            made.append(make(item))
        except (InvalidInputError, UnsupportedError, NotFoundError) as problem:
            problems.append(problem)
    if problems:
        raise together(problems, what)
    return made


def refused(what: str) -> InvalidInputError:
    """The error for what must not be kept, not even as an opaque file: cut short, or elsewhere."""
    return InvalidInputError(what, _REFUSED)


def is_refused(error: Exception) -> bool:
    """Whether `refused` made it."""
    return _REFUSED in error.args[1:]


def within(path: Path, error: InvalidInputError) -> InvalidInputError:
    """The same error, saying first which file it is about."""
    text = str(error)
    shown = text if text.startswith(f"{path}: ") else f"{path}: {text}"
    return type(error)(shown, *error.args[1:])


def sentence(problem: Exception) -> str:
    """The first line of what a library says, to stand inside a sentence of ours."""
    lines = str(problem).splitlines()
    return (lines[0] if lines else type(problem).__name__).rstrip(".")
