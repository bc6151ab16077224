"""Editor of commit messages: the program that a person writes them in, as git has it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tensorrepo.cli import output
from tensorrepo.repo.errors import InvalidInputError

_NAMED_BY = ("GIT_EDITOR", "VISUAL", "EDITOR")
_USUAL = ("vi", "nano")
_COMMENT = "#"


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


def edited_message(
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
    words = editor_command(environment)
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


_ADVICE = "Give the message with -m, or name another editor in GIT_EDITOR, VISUAL or EDITOR."


def editor_command(environment: Mapping[str, str]) -> list[str]:
    """The words of the command that edits a file. Raises InvalidInputError where there is none."""
    words = shlex.split(next(_named(environment), next(filter(shutil.which, _USUAL), "")))
    if not words:
        raise InvalidInputError(f"there is no editor to write a message in. {_ADVICE}")
    return words
