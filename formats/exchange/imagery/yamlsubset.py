"""Read the part of YAML that data.yaml files use.

Keys with plain or quoted values, lists and mappings one level deep, in blocks or in brackets,
comments. Whatever else YAML has (anchors, tags, texts over several lines, documents) is refused:
half an understanding would give wrong names without a word.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = re.compile(
    r"""(?P<key>"[^"]*"|'[^']*'|[^\s:#&*!|>%@`'"\[\]{}-][^:#]*?|-?\d+)\s*:(?:\s+(?P<value>.*))?$"""
)
_PIECE = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,\[\]{}'"]+)\s*(,|$)""")
_REFUSED = "&*!|>%@`"


def parse_yaml(text: str) -> dict[str, Any]:
    """The mapping that a simple YAML file holds; numbers stay text.

    Raises:
        ValueError: a line outside the part of YAML that is read here; names it.
    """
    form: dict[str, Any] = {}
    lines = _joined(_lines(text))
    at = 0
    while at < len(lines):
        number, line = lines[at]
        match = None if line[:1].isspace() else _KEY.match(line)
        if match is None:
            raise _refused(number, line)
        at += 1
        block = []
        while at < len(lines) and _belongs(lines[at][1]):
            block.append(lines[at])
            at += 1
        key, value = _plain(match["key"], number), match["value"]
        if key in form:
            raise ValueError(f"line {number}: key {key!r} is there twice")
        if block and value:
            raise _refused(block[0][0], block[0][1])
        form[key] = _block(block) if block else _value(value or "", number)
    return form


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines with something in them, comments cut off, with their numbers."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        kept = _without_comment(line).rstrip()
        if kept and not (kept == "---" and not found):
            found.append((number, kept))
    return found


def _without_comment(line: str) -> str:
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (not at or line[at - 1] in " \t[{,:"):
            quote = letter
        elif letter == "#" and (not at or line[at - 1] in " \t"):
            return line[:at]
    return line


def _joined(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Lists in brackets that go over several lines, as one line."""
    found: list[tuple[int, str]] = []
    is_open = False
    for number, line in lines:
        if is_open:
            first, held = found[-1]
            found[-1] = (first, f"{held} {line.strip()}")
        else:
            found.append((number, line))
        text = found[-1][1]
        value = text.partition(":")[2].strip()
        is_open = value[:1] in ("[", "{") and value[-1:] not in ("]", "}")
    return found


def _belongs(line: str) -> bool:
    return line[:1].isspace() or line.startswith("- ")


def _block(lines: Sequence[tuple[int, str]]) -> list[str] | dict[str, str]:
    """The lines below a key: a list, or a mapping."""
    depth = {len(line) - len(line.lstrip()) for _, line in lines}
    if len(depth) > 1:
        raise _refused(*lines[-1])
    if all(line.lstrip().startswith("- ") for _, line in lines):
        return [_plain(line.lstrip()[2:].strip(), number) for number, line in lines]
    form: dict[str, str] = {}
    for number, line in lines:
        match = _KEY.match(line.strip())
        if match is None:
            raise _refused(number, line)
        form[_plain(match["key"], number)] = _plain(match["value"] or "", number)
    return form


def _value(text: str, number: int) -> Any:
    text = text.strip()
    if text[:1] == "[" and text[-1:] == "]":
        return _pieces(text[1:-1], number)
    if text[:1] == "{" and text[-1:] == "}":
        pairs = [_KEY.match(piece) for piece in _pieces(text[1:-1], number)]
        if not all(pairs):
            raise _refused(number, text)
        return {
            _plain(pair["key"], number): _plain(pair["value"] or "", number)
            for pair in pairs
            if pair
        }
    return _plain(text, number)


def _pieces(text: str, number: int) -> list[str]:
    """What stands between commas."""
    found: list[str] = []
    at = 0
    text = text.strip().removesuffix(",")
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise _refused(number, text)
        found.append(_plain(match[1].strip(), number))
        at = match.end()
    return found


def _plain(text: str, number: int) -> str:
    """A value without its quotes."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0] or "\\" in text:
            raise _refused(number, text)
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    if text[:1] in ("[", "{", *_REFUSED):
        raise _refused(number, text)
    return text


def _refused(number: int, line: str) -> ValueError:
    return ValueError(
        f"line {number}: {line.strip()[:60]!r} is YAML that is not read here; "
        "write keys, plain values and simple lists"
    )
