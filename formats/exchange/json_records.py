"""JSON records: where each record of one large JSON document lies.

Annotations and exports come as one document of hundreds of megabytes. It is walked once, bracket
by bracket in pieces of a few megabytes; records are decoded one by one when they are asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.json import decode_json
from tensorrepo.repo.deferred_dataclass import dataclass

PIECE_BYTES = 4 << 20
MAX_TEXT_BYTES = 256 << 20  # of one text: masks of large pictures take megabytes
_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
# A whole text, a bracket, or the quote of a text that goes on in the next piece.
_TOKEN = re.compile(_TEXT + rb'|[\[\]{}"]', re.DOTALL)


def _nested(levels: int) -> bytes:
    """An expression for brackets with at most that many levels of brackets in them."""
    flat = rb'(?:[^{}\[\]"]++|' + _TEXT + rb")*+"
    inner = flat
    for _ in range(levels):
        inner = flat + rb"(?:[\[{]" + inner + rb"[\]}]" + flat + rb")*+"
    return rb"[\[{]" + inner + rb"[\]}]"


# A whole record, found in one go; the few that nest deeper are walked bracket by bracket.
_RECORD = re.compile(rb"[\s,]*+(" + _nested(4) + rb")", re.DOTALL)
JsonRecord = TypeVar("JsonRecord")


@dataclass(frozen=True, slots=True)
class JsonSpan:
    """Bytes ``[start, stop)`` of a file: one record in the list called `key`, "" in a bare list.

    An object that stands alone under its key is one record.
    """

    key: str
    start: int
    stop: int


def scan(path: Path) -> Iterator[JsonSpan]:
    """The records of a JSON file that is a list of records, or an object of such lists.

    Raises:
        InvalidInputError: brackets that do not close, or something behind the end.
    """
    walk = _Walk()
    with refusals(path, "JSON file", ValueError), path.open("rb") as file:
        yield from _spans(file, walk)
    if walk.depth or not walk.root:
        raise damage(path, "is not JSON, or cut short: its brackets do not close")


def read_record(path: Path, file: IO[bytes], span: JsonSpan, kind: type[JsonRecord]) -> JsonRecord:
    """Decode the record at a place. Raises InvalidInputError, which names the place."""
    text = os.pread(file.fileno(), span.stop - span.start, span.start)
    return decode_json(f"{path}, {span.key or 'record'} at byte {span.start}", text, kind)


class _Walk:
    """The state of a walk over brackets."""

    def __init__(self) -> None:
        self.depth = 0
        self.root = b""
        self.key = b""
        self.inner = b""
        self.start = 0

    def take(self, token: bytes, at: int) -> JsonSpan | None:
        if token[:1] == b'"':
            if self.depth == 1:  # what stands before a bracket is its key
                self.key = token
            return None
        if token in b"{[":
            self._enter(token, at)
            return None
        self.depth -= 1
        if self.depth < 0:
            raise ValueError(f"a bracket too many at byte {at}")
        if self.depth and self.depth == self._record_depth():
            return self.span(self.start, at + 1)
        return None

    def _enter(self, token: bytes, at: int) -> None:
        if not self.depth:
            if self.root:
                raise ValueError(f"a second value begins at byte {at}")
            self.root = token
        elif self.depth == 1:
            self.inner = token
        if self.depth and self.depth == self._record_depth():
            self.start = at
        self.depth += 1

    def is_between_records(self) -> bool:
        """Whether a list of records goes on here."""
        opened = self.root if self.depth == 1 else self.inner
        return bool(self.depth) and opened == b"[" and self.depth == self._record_depth()

    def span(self, start: int, stop: int) -> JsonSpan:
        key = str(msgspec.json.decode(self.key)) if self.root == b"{" else ""
        return JsonSpan(key, start, stop)

    def _record_depth(self) -> int:
        return 2 if self.root == b"{" and self.inner == b"[" else 1


def _spans(file: IO[bytes], walk: _Walk) -> Iterator[JsonSpan]:
    held, first = b"", 0
    while piece := file.read(PIECE_BYTES):
        held += piece
        at = 0
        while at < len(held):
            whole = _RECORD.match(held, at) if walk.is_between_records() else None
            if whole:
                yield walk.span(first + whole.start(1), first + whole.end(1))
                at = whole.end()
                continue
            token = _TOKEN.search(held, at)
            if token is None or token[0] == b'"':
                at = len(held) if token is None else token.start()
                break
            span = walk.take(token[0], first + token.start())
            if span is not None:
                yield span
            at = token.end()
        held = held[at:]
        first += at
        if len(held) > MAX_TEXT_BYTES:
            raise ValueError(f"a text of more than {MAX_TEXT_BYTES} bytes begins at byte {first}")
    if held:
        raise ValueError(f"a text that begins at byte {first} does not end")
