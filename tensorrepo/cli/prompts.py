"""Secrets that are typed unseen, or piped in: tokens and passwords."""

from __future__ import annotations

import getpass
import sys

from tensorrepo.repo.errors import InvalidInputError


def secret(what: str, *, from_input: bool = False) -> str:
    """One line of standard input; at a terminal, unless `from_input`, what the user types unseen.

    Raises:
        InvalidInputError: nothing came.
    """
    is_typed = sys.stdin.isatty() and not from_input
    line = getpass.getpass(f"{what}: ") if is_typed else sys.stdin.readline()
    if not line.strip():
        raise InvalidInputError("nothing was given: type it at the prompt, or pipe it in")
    return line.strip("\r\n")


def secret_twice(what: str, *, again: bool = True) -> str:
    """As `secret`; a terminal asks twice, for what is typed unseen is easily mistyped."""
    typed = secret(what)
    if again and sys.stdin.isatty() and secret(f"{what}, once more") != typed:
        raise InvalidInputError("the two differ: nothing was changed")
    return typed
