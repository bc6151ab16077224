"""Validation of names: paths, refs and texts, checked once, at the border.

User text never becomes part of a storage path; the rules keep every tree writable as folders and
files on every common file system.

Source:
    docs/spec/names.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

from tensorrepo.repo.errors import InvalidInputError

MAX_SEGMENTS = 16
MAX_SEGMENT_BYTES = 255
MAX_FILE_NAME_BYTES = 4096
MAX_REF_BYTES = 1024

# What Windows opens instead of a file, whatever the extension (`nul.txt` is the null device).
_DEVICES = r"(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?![^./])"
# Without re.ASCII, ignoring case lets the Kelvin sign through as a k.
_ANY_CASE = re.IGNORECASE | re.ASCII
_DEVICE = re.compile(_DEVICES, _ANY_CASE)
_PATH_TEXT = re.compile(r"[A-Za-z0-9._/-]*")
_SEGMENT = rf"(?!{_DEVICES})[A-Za-z0-9_][A-Za-z0-9._-]{{0,254}}(?<!\.)"
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,{MAX_SEGMENTS - 1}}}", _ANY_CASE)
# Controls, line separators, bidirectional controls and lone surrogates: they deceive whoever
# reads a terminal, or cannot be stored as UTF-8. Joiners stay: scripts and emoji need them.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_REF_SEGMENT = re.compile(r"[A-Za-z0-9_#+@=][A-Za-z0-9._#+@=-]*")
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]*")
_WHOLE_DIGEST = re.compile(r"[0-9a-f]{64}")


def path_key(path: str) -> tuple[str, str]:
    """Sort key of trees: (lower-case path, path), where "/" sorts before everything else.

    So an entry is followed at once by what clashes with it: its case twins, and the paths that
    would make a folder of it.
    """
    return folded(path), path


@lru_cache(maxsize=1 << 14)  # the same paths are compared again and again
def folded(path: str) -> str:
    """The first half of `path_key`: equal for paths that differ only in case."""
    return path.lower().replace("/", "\0")


def is_path(path: str) -> bool:
    """Whether `check_path` would pass: for readers of pages, who check thousands."""
    return _PATH.fullmatch(path) is not None


def check_path(path: str) -> str:
    """`path`, when it may name an entry of a tree.

    Raises:
        InvalidInputError: says which rule it breaks.
    """
    if not isinstance(path, str):
        raise InvalidInputError(f"a path is text, got {type(path).__name__}")
    if is_path(path):
        return path
    if not path:
        raise InvalidInputError("a path is not empty")
    if not _PATH_TEXT.fullmatch(path):
        _refuse("path", path, "only A-Z a-z 0-9 . _ - and / may be used")
    _check_segments("path", path, path, _segment_fault)
    raise AssertionError(f"the two forms of the path grammar disagree about {path!r}")


def _check_segments(what: str, name: str, text: str, fault: Callable[[str], str | None]) -> None:
    segments = text.split("/")
    if len(segments) > MAX_SEGMENTS:
        _refuse(what, name, f"{len(segments)} segments, at most {MAX_SEGMENTS} are allowed")
    for segment in segments:
        if reason := fault(segment):
            _refuse(what, name, reason)


def _segment_fault(segment: str) -> str | None:
    if not segment:
        return "it starts or ends with '/', or has '//' inside"
    if fault := _begin_or_length_fault(segment):
        return fault
    if segment[-1] == ".":
        return f"segment {segment!r} ends with a dot"
    if _DEVICE.match(segment):
        return f"segment {segment!r} is a device name on Windows"
    return None


def _begin_or_length_fault(segment: str) -> str | None:
    if len(segment) > MAX_SEGMENT_BYTES:
        return f"a segment of {len(segment)} bytes, at most {MAX_SEGMENT_BYTES} are allowed"
    return f"segment {segment!r} starts with {segment[0]!r}" if segment[0] in ".-" else None


def check_ref(name: str) -> str:
    """`name`, when it may be a full ref name: ``heads/main``, ``tags/v1``, ``runs/<run>/<step>``.

    Raises:
        InvalidInputError: says which rule it breaks.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"a ref name is text, got {type(name).__name__}")
    if len(name) > MAX_REF_BYTES:
        _refuse("ref", name, f"{len(name)} characters, at most {MAX_REF_BYTES} are allowed")
    namespace, slash, rest = name.partition("/")
    if not slash or not _NAMESPACE.fullmatch(namespace):
        _refuse("ref", name, "it must start with a namespace, such as heads/ or tags/")
    _check_segments("ref", name, rest, _ref_segment_fault)
    if rest in {"HEAD", "@"} or _WHOLE_DIGEST.fullmatch(rest):
        _refuse("ref", name, f"{rest:.12} already means something else where a ref is expected")
    return name


def _ref_segment_fault(segment: str) -> str | None:
    if not segment:
        return "it ends with '/', or has '//' inside"
    if fault := _begin_or_length_fault(segment):
        return fault
    if not _REF_SEGMENT.fullmatch(segment):
        return "only A-Z a-z 0-9 . _ - # + @ = and / may be used"
    if ".." in segment:
        return "'..' means a range of commits"
    if segment.endswith((".", ".lock")):
        return f"segment {segment!r} ends with a dot or .lock"
    return None


def check_file_name(name: str) -> str:
    """`name`, when it may name a file inside a manifest: it is data, so most unicode may be used.

    Raises:
        InvalidInputError: says which rule it breaks.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"a file name is text, got {type(name).__name__}")
    if reason := _file_name_fault(name):
        _refuse("file name", name, reason)
    return name


def _file_name_fault(name: str) -> str | None:
    if name.startswith("/"):
        return "it is absolute; name it relative to the manifest"
    if found := _UNPRINTABLE.search(name):
        return f"character U+{ord(found[0]):04X} is not printable"
    if found := re.search(r"[\\:]", name):
        return f"{found[0]!r} separates folders or drives on Windows"
    if not unicodedata.is_normalized("NFC", name):
        return "it is not in Unicode normal form NFC; normalise it first"
    segments = name.split("/")
    if any(segment in {"", ".", ".."} for segment in segments):
        return "it has an empty, '.' or '..' segment"
    if len(name.encode()) > MAX_FILE_NAME_BYTES:
        return f"{len(name.encode())} bytes, at most {MAX_FILE_NAME_BYTES} are allowed"
    if any(len(segment.encode()) > MAX_SEGMENT_BYTES for segment in segments):
        return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes"
    return None


def check_text(text: str, what: str, *, limit_bytes: int, lines: bool) -> str:
    """`text`, when it can be shown to people: UTF-8, no control or bidirectional characters.

    Args:
        text: what somebody wrote.
        what: how messages call it.
        limit_bytes: the most that it may take in UTF-8.
        lines: whether line feeds and tabs are fine.

    Raises:
        InvalidInputError: says which rule it breaks.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"{what} is text, got {type(text).__name__}")
    shown = text.replace("\n", "").replace("\t", "") if lines else text
    if found := _UNPRINTABLE.search(shown):
        raise InvalidInputError(f"{what}: character U+{ord(found[0]):04X} is not printable")
    if (size := len(text.encode())) > limit_bytes:
        raise InvalidInputError(f"{what}: {size} bytes, at most {limit_bytes} are allowed")
    return text


def _refuse(what: str, name: str, reason: str) -> NoReturn:
    raise InvalidInputError(f"{what} {name!r:.120} cannot be used: {reason}")
