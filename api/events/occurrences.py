"""Events: what the records of a log say happened to refs, for streams and webhooks.

An event is one update of one entry that applied. Its id, ``generation:index``, is its place in the
log, so that whoever knows the last one that they got can ask for what came after it, of any process
of the service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView, RepositoryLog, Tip
from tensorrepo.repo.log.records import REF_KINDS, LogRecord, Update
from tensorrepo.repo.log.state import Verdict

_ID = re.compile(r"(0|[1-9][0-9]{0,17}):(0|[1-9][0-9]{0,8})")
_VERSION = re.compile(r"registry/(.+)/v/([0-9]+)")
_ALIAS = re.compile(r"registry/(.+)/alias/([^/]+)")
_REQUEST = re.compile(r"requests/([0-9]+)/head")
_WORDS: Final = {"heads": "branch", "tags": "tag", "runs": "run"}


class EventId(msgspec.Struct, frozen=True, order=True):
    """Place of an event in the log; (g, i) with i beyond its updates stands behind record g."""

    generation: int
    index: int

    def __str__(self) -> str:
        return f"{self.generation}:{self.index}"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened.

    Attributes:
        id: place in the log, ``generation:index``.
        type: such as ``branch.moved``, ``version.registered`` and ``alias.set``.
        ref: full name of the ref that moved.
        old: commit that it named before.
        new: commit that it names now.
        actor: who did it.
        note: what the log says about it.
        time_ns: when, UTC.
        subject: name of what is registered, or number of a merge request.
        version: number of a registered version.
        alias: name of an alias.
    """

    id: str
    type: str
    ref: str
    old: str | None
    new: str | None
    actor: str
    note: str
    time_ns: int
    subject: str | None = None
    version: int | None = None
    alias: str | None = None

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def parse_event_id(text: str) -> EventId:
    """Raises InvalidInputError for what is none."""
    parts = _ID.fullmatch(text)
    if parts is None:
        raise InvalidInputError(
            f"an event's id is generation:index, such as '17:0', not {text!r:.60}"
        )
    return EventId(int(parts[1]), int(parts[2]))


def events_of(
    record: LogRecord,
    verdicts: Iterable[Verdict],
    read_bulk: Callable[[Digest], tuple[Update, ...]],
) -> Iterator[Event]:
    """Events of one record, those of refs that moved, in its order."""
    index = 0
    for entry, verdict in zip(record.entries, verdicts, strict=True):
        if entry.kind not in REF_KINDS or not verdict.applied:
            continue
        bulk = () if entry.bulk is None else read_bulk(entry.bulk)
        for update in (*entry.updates, *bulk):
            place = str(EventId(record.gen, index))
            made = _event(place, update, entry.actor, entry.note, entry.time_ns)
            index += 1
            yield made


def events_after(
    log: RepositoryLog, view: LogView, stop: int
) -> Iterator[tuple[LogView, tuple[Event, ...]]]:
    """The view after each record behind `view`, up to record `stop`, and the record's events."""
    tip = Tip(view)
    for slot in log.slots_between(view.generation + 1, stop + 1):
        tip, verdicts = log.add(tip, slot)
        yield tip.view, tuple(events_of(slot.record, verdicts, log.read_bulk))


def _event(place: str, update: Update, actor: str, note: str, time_ns: int) -> Event:
    type_, subject, version, alias = _kind_of(update)
    return Event(
        place, type_, update.ref, update.old, update.new, actor, note, time_ns,
        subject, version, alias,
    )  # fmt: skip


def _kind_of(update: Update) -> tuple[str, str | None, int | None, str | None]:
    gone = update.new is None
    if found := _VERSION.fullmatch(update.ref):
        word = "deleted" if gone else "registered"
        return f"version.{word}", found[1], int(found[2]), None
    if found := _ALIAS.fullmatch(update.ref):
        return ("alias.removed" if gone else "alias.set"), found[1], None, found[2]
    if found := _REQUEST.fullmatch(update.ref):
        word = "deleted" if gone else "opened" if update.old is None else "updated"
        return f"request.{word}", found[1], None, None
    space = update.ref.partition("/")[0]
    word = "deleted" if gone else "created" if update.old is None else "moved"
    return f"{_WORDS.get(space, 'ref')}.{word}", None, None, None
