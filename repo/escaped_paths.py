"""File names of anywhere as paths of trees: what the path grammar refuses is written as digits.

``.gitattributes`` becomes ``_-2Egitattributes``: an underscore, a hyphen, two digits of each byte.
Names that the grammar allows stay as they are, unless they look escaped. No two names become one
path, and `unescape_path` gives each back.

Source:
    docs/spec/names.md, section "Files of elsewhere".
"""

from __future__ import annotations

import re
from typing import Final

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import check_file_name, check_path, is_path

_ESCAPED: Final = re.compile(r"_-([0-9A-F]{2})")
# What is never plain: other characters, what looks escaped, a dot or hyphen in front, a last dot.
_ODD: Final = re.compile(rb"[^A-Za-z0-9._-]|_(?=-[0-9A-F]{2})|^[.-]|\.$")


def escape_path(name: str) -> str:
    """The path for a file of that name, relative to a folder.

    Raises:
        InvalidInputError: a name with an empty, '.' or '..' segment, a control character or the
            like; or one that is too long or too deep.
    """
    segments = check_file_name(name).split("/")
    return check_path("/".join(map(_escaped, segments)))


def unescape_path(path: str) -> str:
    """The name that `escape_path` made `path` of; `path` itself where it made none so."""
    found = "/".join(map(_plain, path.split("/")))
    try:
        return found if escape_path(found) == path else path
    except InvalidInputError:
        return path


def _escaped(segment: str) -> str:
    found = _ODD.sub(_digits, segment.encode()).decode()
    if is_path(found) or not found:
        return found
    return f"_-{ord(found[0]):02X}{found[1:]}"  # a name that Windows keeps for a device


def _digits(match: re.Match[bytes]) -> bytes:
    return b"_-%02X" % match[0][0]


def _plain(segment: str) -> str:
    data = re.sub(
        _ESCAPED.pattern.encode(), lambda found: bytes.fromhex(found[1].decode()), segment.encode()
    )
    return data.decode(errors="replace")
