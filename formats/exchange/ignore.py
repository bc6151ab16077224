"""Which files of a folder does `.tensorrepoignore` leave out?

Its lines are git's: `#` comments, `!` takes back, a final `/` means folders only, a `/` elsewhere
ties the pattern to the folder of the file, `*` and `?` stay inside one name, `**` crosses folders.
The last line that matches decides. What lies in a folder that is left out cannot be taken back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.damage import damage, refusals

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = ".tensorrepoignore"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: `pattern` matches whole paths relative to the folder, with slashes."""

    pattern: re.Pattern[str]
    folders_only: bool
    takes_back: bool


@dataclass(frozen=True, slots=True)
class Ignore:
    """The rules of one file, in its order."""

    rules: tuple[Rule, ...] = ()

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path`, relative and with slashes, is left out by the rules themselves."""
        out = False
        for rule in self.rules:
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                out = not rule.takes_back
        return out


def parse_ignore(text: str) -> Ignore:
    """The rules that the text of an ignore file states."""
    return Ignore(tuple(rule for line in text.splitlines() if (rule := _rule(line)) is not None))


def read_ignore(folder: Path) -> Ignore:
    """The rules in `folder`'s own ignore file; none when there is no such file."""
    path = folder / FILE_NAME
    if not path.is_file():
        return Ignore()
    with refusals(path, "ignore file", UnicodeDecodeError):
        return parse_ignore(path.read_text("utf-8"))


def _rule(line: str) -> Rule | None:
    line = line.rstrip()
    if not line or line.startswith("#"):
        return None
    takes_back = line.startswith("!")
    line = line.removeprefix("!").removeprefix("\\")  # "\#" and "\!" begin ordinary names
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    anchored = "/" in line
    expression = _translate(line.removeprefix("/"))
    try:
        pattern = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    except re.error as problem:
        raise damage(FILE_NAME, f"line {line!r} is no pattern: {problem}") from problem
    return Rule(pattern, folders_only, takes_back)


def _translate(glob: str) -> str:
    """A regular expression for one pattern without its `!` and its outer slashes."""
    pieces = re.split(r"(\*\*/|/\*\*$|\*+|\?|\[!?[^]/]+\])", glob)
    return "".join(map(_piece, pieces))


def _piece(piece: str) -> str:
    known = {"**/": "(?:.*/)?", "/**": "/.+", "?": "[^/]"}
    if piece in known:
        return known[piece]
    if piece and not piece.strip("*"):
        return "[^/]*"
    if len(piece) > 2 and piece[0] == "[":
        inner = piece[1:-1].replace("\\", "\\\\").replace("^", "\\^")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(piece)
