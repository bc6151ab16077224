"""Names of a run's files as paths of a tree, which may be spelled by fewer characters.

A byte that a path may not have is ``_x``, two hexadecimal digits and ``_``; so is the ``_`` of a
name that has ``_x`` itself. What is left as it is reads as it did.

Trees have no two names that differ only in case, since many file systems have not. Where a history
of elsewhere has such, the one that sorts last, of small letters, stays; capitals of the others are
written so, too: ``README`` beside ``readme`` is ``_x52__x45__x41__x44__x4d__x45_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import check_file_name, is_path

_OTHERS: Final = re.compile(r"[^A-Za-z0-9._/-]|_(?=x)")
_CAPITAL: Final = re.compile(r"[A-Z]")
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


def tree_paths(names: Iterable[str]) -> dict[str, str]:
    """Paths of files and folders that lie in one tree, by name. It depends on these names alone.

    Raises:
        InvalidInputError: as `tree_path`.
    """
    paths = {name: tree_path(name).split("/") for name in names}
    for name, twins in _twins(paths).items():
        for at in twins:
            paths[name][at] = _CAPITAL.sub(lambda match: _escaped(match[0]), paths[name][at])
    joined = {name: "/".join(path) for name, path in paths.items()}
    for name, path in joined.items():
        if not is_path(path):
            raise InvalidInputError(
                f"file {name!r:.120} cannot be kept: a name that differs from it only in case lies "
                "beside it, and what tells them apart is too long"
            )
    return joined


def _twins(names: Iterable[str]) -> dict[str, list[int]]:
    """Which segments of a name differ only in case from others beside them, and do not stay."""
    lying: dict[tuple[str, str], set[str]] = {}
    for name in names:
        segments = name.split("/")
        for at, segment in enumerate(segments):
            lying.setdefault(("/".join(segments[:at]), _small(segment)), set()).add(segment)
    stays = {place: max(found) for place, found in lying.items() if len(found) > 1}
    if not stays:
        return {}
    twins: dict[str, list[int]] = {}
    for name in names:
        segments = name.split("/")
        for at, segment in enumerate(segments):
            if stays.get(("/".join(segments[:at]), _small(segment)), segment) != segment:
                twins.setdefault(name, []).append(at)
    return twins


def _small(text: str) -> str:
    """`text` without capitals of ASCII: others are digits in paths, and differ."""
    return _CAPITAL.sub(lambda match: match[0].lower(), text)


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
