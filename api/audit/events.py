"""Events of the audit log, and the chain of blocks that they stand in.

Pure. An event says who did what to which repository, from where, and what came of it; never a
secret, and never what stands in a query or a body. The events of one second are a block; the hash
of each block covers the one before, so that who changes or drops one has to change all that follow.

Source:
    docs/design/service.md, section "Audit log".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from typing import Any, Final, Literal

import msgspec

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.typed_decoding import from_json

EventKind = Literal[
    "sign-in", "sign-out", "write", "grant", "refusal", "download", "token", "account", "overflow"
]
GENESIS: Final = "0" * 64
MAX_TEXT: Final = 512  # characters of a path, of an address
MAX_PATHS: Final = 32  # of one event
_SECRET = re.compile(r"tr[ps]_[A-Za-z0-9_-]{6,}")
_CHAIN = ("block", "block_time_ns", "previous", "hash")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that was done, or refused.

    Attributes:
        time_ns: when, UTC.
        kind: what sort of thing.
        actor: name of the user; empty for nobody.
        token: public id of the token or session.
        address: where the request came from.
        request_id: what logs and answers call the request; the first of `count`.
        repository: name of the repository; empty for the service itself.
        method: the HTTP method.
        paths: what was asked for; of several the first ones.
        status: the HTTP status.
        count: requests that this stands for: equal ones of one second.
        bytes: what was sent, of downloads.
        detail: more, in a few words.
    """

    time_ns: int
    kind: EventKind
    actor: str = ""
    token: str = ""
    address: str = ""
    request_id: str = ""
    repository: str = ""
    method: str = ""
    paths: tuple[str, ...] = ()
    status: int = 0
    count: int = 1
    bytes: int = 0
    detail: str = ""

    def __post_init__(self) -> None:
        for name in ("actor", "address", "request_id", "repository", "method", "detail"):
            object.__setattr__(self, name, clean(getattr(self, name)))
        object.__setattr__(self, "paths", tuple(clean(path) for path in self.paths[:MAX_PATHS]))

    def joined(self, other: AuditEvent) -> AuditEvent:
        """This event and an equal one, as one."""
        paths = tuple(dict.fromkeys((*self.paths, *other.paths)))
        return replace(
            self,
            paths=paths[:MAX_PATHS],
            count=self.count + other.count,
            bytes=self.bytes + other.bytes,
        )

    def encode(self) -> str:
        """Canonical JSON: sorted members, those that hold nothing left out."""
        values = ((name, getattr(self, name)) for name in _MEMBERS)
        told = {name: value for name, value in values if value not in ("", 0, ())}
        return canonical(told)


_MEMBERS: Final = tuple(each.name for each in fields(AuditEvent))


@dataclass(frozen=True, slots=True)
class Block:
    """The events of one second, of one process."""

    number: int
    time_ns: int
    previous: str
    events: tuple[str, ...]
    hash: str = field(default="")

    @classmethod
    def make(cls, number: int, time_ns: int, previous: str, events: Iterable[str]) -> Block:
        bare = cls(number, time_ns, previous, tuple(events))
        return replace(bare, hash=bare.expected_hash())

    def expected_hash(self) -> str:
        head = f"tensorrepo audit block\n{self.number}\n{self.time_ns}\n{self.previous}\n"
        return hashlib.sha256((head + "\n".join(self.events)).encode()).hexdigest()

    def lines(self) -> Iterator[str]:
        """The events as JSON lines, each with its place in the chain."""
        place = {
            "block": self.number,
            "block_time_ns": self.time_ns,
            "previous": self.previous,
            "hash": self.hash,
        }
        for event in self.events:
            yield canonical({**msgspec.json.decode(event), **place})


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What was found of a chain: whole where `problems` are none."""

    blocks: int
    events: int
    first: int | None
    last: int | None
    head: str
    problems: tuple[str, ...]


def verify(blocks: Iterable[Block], anchors: Iterable[tuple[int, str]] = ()) -> ChainReport:
    """Follow a chain from its first block.

    Args:
        blocks: ascending; the first may be any, its `previous` is believed unless it is block 1.
        anchors: number and hash of blocks, as repositories' logs were told.
    """
    problems: list[str] = []
    told = dict[int, set[str]]()
    for number, hashed in anchors:
        told.setdefault(number, set()).add(hashed)
    first = last = None
    count = events = 0
    head = GENESIS
    for block in blocks:
        expected = block.number if first is None else (last or 0) + 1
        if block.number != expected:
            problems.append(f"blocks {expected} to {block.number - 1} are missing")
        elif (first is not None or block.number == 1) and block.previous != head:
            problems.append(f"block {block.number} does not follow the one before it")
        if block.hash != block.expected_hash():
            problems.append(f"block {block.number} was changed: its hash is another one")
        if told.pop(block.number, {block.hash}) != {block.hash}:
            problems.append(f"block {block.number} is not what a repository's log says it was")
        first = block.number if first is None else first
        last, head = block.number, block.hash
        count, events = count + 1, events + len(block.events)
    gone = sorted(number for number in told if first is None or number >= first)
    problems += [f"block {number}, which a repository's log names, is missing" for number in gone]
    return ChainReport(count, events, first, last, head, tuple(problems))


def blocks_of_lines(lines: Iterable[str]) -> Iterator[Block]:
    """The blocks of exported lines. Raises InvalidInputError for what is no such line."""
    place: tuple[Any, ...] | None = None
    events: list[str] = []
    for line in lines:
        found = _line(line)
        here = tuple(found.pop(key) for key in _CHAIN)
        if place is not None and here != place:
            yield _block(place, events)
            events = []
        place = here
        events.append(canonical(found))
    if place is not None:
        yield _block(place, events)


def canonical(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def clean(text: str) -> str:
    """`text` as it may stand in the log: short, encodable, and without what looks like a secret."""
    short = text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    return _SECRET.sub(lambda match: f"{match[0][:4]}***", short)


def _line(line: str) -> dict[str, Any]:
    try:
        found = from_json(line, Any)
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"this is no line of an audit log: {line!r:.80}") from error
    if not isinstance(found, dict) or not all(key in found for key in _CHAIN):
        raise InvalidInputError(
            f"this line has no place in a chain: {line!r:.80}. Export it again by "
            "`tensorrepo audit export`"
        )
    return found


def _block(place: tuple[Any, ...], events: list[str]) -> Block:
    number, time_ns, previous, hashed = place
    return Block(number, time_ns, previous, tuple(events), hashed)
