"""Argument checks, asked where a call begins, and wording of counts and sizes.

Each check names the argument as the user wrote it, what was expected, and what was found. Whole
numbers of numpy count as such, and come out as Python's; True is no number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan, nan
from operator import index
from pathlib import Path
from typing import Any

from tensorrepo.repo import tables
from tensorrepo.repo.errors import InvalidInputError

counted, bytes_text = tables.counted, tables.bytes_text

MOST = (1 << 62) - 1  # leaves room for sums of two in int64
MOST_WORD = (1 << 64) - 1

_SIZES = "bytes, or a text such as '512MB' or '2GiB'"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*", re.IGNORECASE)


def whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """A whole number in ``[least, most]``. Raises InvalidInputError."""
    try:
        found = None if _is_bool(value) else index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        beyond = "" if most == MOST else f" and at most {_power(most)}"
        raise wrong(name, f"a whole number, at least {least}{beyond}", value)
    return found


def word(name: str, value: Any) -> int:
    """A whole number of 64 bits, such as a seed."""
    return whole(name, value, 0, MOST_WORD)


def real(name: str, value: Any, least: float, most: float = inf) -> float:
    """A finite number in ``[least, most]``. Raises InvalidInputError."""
    try:
        found = nan if isinstance(value, str | bytes) or _is_bool(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = nan
    if not (isfinite(found) and least <= found <= most):
        beyond = "" if most == inf else f" and at most {most:g}"
        raise wrong(name, f"a finite number, at least {least:g}{beyond}", value)
    return found


def byte_size(name: str, value: Any, least: int = 0) -> int:
    """A size in bytes: decimal units without an "i", binary ones with it, a number is itself.

    The one rule of all sizes, in the SDK, in options of commands and in settings.

    >>> [byte_size("window", each) for each in ("64MB", "64MiB", "1.5k", 9)]
    [64000000, 67108864, 1500, 9]

    Raises:
        InvalidInputError: no size, or one below `least`.
    """
    if not isinstance(value, str):
        if _is_bool(value) or not hasattr(value, "__index__"):
            raise wrong(name, _SIZES, value)
        return whole(name, value, least)
    match = _SIZE.fullmatch(value)
    if match is None:
        raise wrong(name, _SIZES, value)
    power = " kmgtp".index(match[2].lower() or " ")
    return whole(name, int(float(match[1]) * (1024 if match[3] else 1000) ** power), least)


def flag(name: str, value: Any) -> bool:
    """True or False, of numpy too. Raises InvalidInputError."""
    if not _is_bool(value):
        raise wrong(name, "True or False", value)
    return bool(value)


def encodable(name: str, value: Any) -> str:
    """Text that can be stored: UTF-8 has no lone surrogates. Raises InvalidInputError."""
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise wrong(name, "text that UTF-8 can hold", value) from error
    return value


def wrong(name: str, expected: str, value: Any) -> InvalidInputError:
    """The error of an argument that is something else."""
    return InvalidInputError(f"{name} is {expected}, got {value!r:.80}")


def _is_bool(value: Any) -> bool:
    """Whether it is True or False, of numpy too, which is not loaded for this question."""
    of_numpy = type(value).__module__ == "numpy" and type(value).__name__ in {"bool", "bool_"}
    return of_numpy or isinstance(value, bool)


def _power(number: int) -> str:
    exponent = number.bit_length()
    return f"2^{exponent} - 1" if number == (1 << exponent) - 1 and exponent > 20 else f"{number:,}"


def check_instance(what: str, value: Any, kinds: Any, expected: str) -> Any:
    """`value`, which is of one of these classes; InvalidInputError says what was expected."""
    if not isinstance(value, kinds):
        raise wrong(what, expected, value)
    return value


def text(what: str, value: Any) -> str:
    """`value`, which is text. Raises InvalidInputError."""
    said: str = check_instance(what, value, str, "text")
    return said


def ref_text(value: Any) -> str:
    """`value`, which may name a commit. Raises InvalidInputError."""
    expected = "the name of a branch, a tag or a commit, such as 'main'"
    ref: str = check_instance("a ref", value, str, expected)
    return ref


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
    """The path of what has this name, which may begin with the space. Raises InvalidInputError."""
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


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many there are beside them: ``'a', 'b' and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def grown_text(byte_count: int) -> str:
    """``+2,000 bytes``, ``-1 byte``: how much more there is than before."""
    return f"{'+' if byte_count >= 0 else '-'}{counted(abs(byte_count), 'byte')}"


def without_password(text: str) -> str:
    """`text` with ``***`` for what may be a password in it, also in mistyped URLs."""
    return _PASSWORD.sub(r"\1***@", text)


_PASSWORD = re.compile(r"(\w:/{0,3}[^\s/:@]*:)[^\s@]*@")


def number_text(value: float) -> str:
    """The text for a float that is no number of JSON: ``NaN``, ``Infinity``, ``-Infinity``."""
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
