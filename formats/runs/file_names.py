"""Names of a run's files as paths of a tree, which may be spelled by fewer characters.

A byte that a path may not have is ``_x``, two hexadecimal digits and ``_``; so is the ``_`` of a
name that has ``_x`` itself. What is left as it is reads as it did.
"""

from __future__ import annotations

import re
from typing import Final

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import check_file_name, is_path

_OTHERS: Final = re.compile(r"[^A-Za-z0-9._/-]|_(?=x)")
_ESCAPE: Final = re.compile(r"_x([0-9a-f]{2})_")


def tree_path(name: str) -> str:
    """The path of the file that somebody calls `name`, such as ``plots/loss by step.png``.

    Raises:
        InvalidInputError: no file may be called that, or its folders are too many.
    """
    check_file_name(name)
    path = "/".join(map(_segment, name.split("/")))
    if not is_path(path):
        raise InvalidInputError(
            f"file {name!r:.120} cannot be kept: its name, or that of a folder, is too long, or "
            "too many folders lie within each other"
        )
    return path


def file_name(path: str) -> str:
    """What somebody calls the file that lies at a path."""
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), path)
    return raw.encode("latin-1").decode()


def _segment(name: str) -> str:
    escaped = _OTHERS.sub(lambda match: _escaped(match[0]), name)
    if name[0] in ".-" or not is_path(escaped):
        # A first character that no path begins with, a dot at the end, a device of Windows.
        escaped = _escaped(name[0]) + _OTHERS.sub(lambda match: _escaped(match[0]), name[1:])
    if escaped.endswith("."):
        escaped = escaped[:-1] + _escaped(".")
    return escaped


def _escaped(text: str) -> str:
    return "".join(f"_x{byte:02x}_" for byte in text.encode())
