"""Argument checks of the SDK: text, paths, mappings and lists from callers.

Asked where a call of the SDK begins, so that a slip is told by the name of the argument and not by
whatever breaks on it further down.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorrepo.formats.common.arguments import wrong


def check_instance(what: str, value: Any, kinds: Any, expected: str) -> None:
    """Raises InvalidInputError, which says what was expected, for a value of another class."""
    if not isinstance(value, kinds):
        raise wrong(what, expected, value)


def text(what: str, value: Any) -> str:
    """`value`, which is text.

    Raises:
        InvalidInputError: it is something else.
    """
    if not isinstance(value, str):
        raise wrong(what, "text", value)
    return value


def ref_text(value: Any) -> str:
    """`value`, which may name a commit. Raises InvalidInputError."""
    if not isinstance(value, str):
        raise wrong("a ref", "the name of a branch, a tag or a commit, such as 'main'", value)
    return value


def file_path(what: str, value: Any) -> Path:
    """A path of this machine, which the system could take. Raises InvalidInputError."""
    try:
        path = Path(value)
        os.fsencode(path)
    except (TypeError, ValueError) as error:
        raise wrong(what, "the path of a file, as text or a Path", value) from error
    if "\0" in str(path):
        raise wrong(what, "the path of a file, without NUL", value)
    return path


def chosen(what: str, value: Any, among: tuple[str, ...]) -> str:
    """One of a few words. Raises InvalidInputError."""
    if not isinstance(value, str) or value not in among:
        raise wrong(what, " or ".join(map(repr, among)), value)
    return value


def path_in(space: str, name: Any) -> str:
    """The path of a dataset, a model, ... of this name: the space may stand before it already.

    Raises:
        InvalidInputError: it is no text.
    """
    path = text(f"a name in {space}", name)
    return path if path.startswith(f"{space}/") else f"{space}/{path}"


def mapping(what: str, value: Any, of: str = "values") -> Mapping[str, Any]:
    """`value`, which maps names to something. Raises InvalidInputError."""
    if not isinstance(value, Mapping):
        raise wrong(what, f"a mapping from names to {of}", value)
    return value


def checked_files(files: Any) -> None:
    """Raises InvalidInputError where these are no files by name: bytes, or where they lie."""
    for name, content in mapping("files", files, "content").items():
        text("the name of a file", name)
        if not isinstance(content, Path | bytes | bytearray | memoryview):
            raise wrong(f"file {name!r:.80}", "bytes, or a Path whose bytes are meant", content)


def listed(what: str, values: Any) -> list[Any]:
    """Several things. Raises InvalidInputError for one alone."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise wrong(what, "a list", values)
    return list(values)


def several(value: Any, *single: type) -> tuple[Any, ...]:
    """All of what was given: one thing of these kinds, which may be iterable itself, or several."""
    if isinstance(value, (str, *single)) or not isinstance(value, Iterable):
        return (value,)
    return tuple(value)
