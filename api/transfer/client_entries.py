"""Entries of the log as a client may have them: which kinds, whose refs, in whose name.

A client says what it wants; what is written says who he is, by the service's own knowledge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.apply import PURGE
from tensorrepo.repo.log.records import REF_KINDS, LogEntry, Update, is_digest
from tensorrepo.repo.log.state import PACKS_KEY, State
from tensorrepo.repo.names import check_ref

SERVICE_SPACES: Final = ("meta/", "requests/", "registry/")
MAX_ENTRIES: Final = 256
_DECODER: Final = msgspec.json.Decoder(tuple[LogEntry, ...])
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_HERE_ALONE: Final = frozenset({PURGE, "gc-condemn", "gc-end", "gc-merge"})
_REWRITTEN_ACTOR: Final = "is signed for another actor than you are to this service"

ReadBulk = Callable[[Digest], tuple[Update, ...]]


def parse_entries(data: msgspec.Raw) -> tuple[LogEntry, ...]:
    """Entries as a message has them. Raises InvalidInputError."""
    try:
        entries = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"entries of the log: {error}") from None
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise InvalidInputError(
            f"an append has 1 to {MAX_ENTRIES} entries, this one {len(entries)}"
        )
    return entries


def encode_entries(entries: tuple[LogEntry, ...]) -> bytes:
    """Entries that were judged, in the canonical JSON of records."""
    return _ENCODER.encode(entries)


def updates_of(entry: LogEntry, read_bulk: ReadBulk) -> tuple[Update, ...]:
    """All that an entry does to refs."""
    if entry.bulk is None:
        return entry.updates
    return (*entry.updates, *read_bulk(entry.bulk))


def as_callers(
    access: RepositoryAccess,
    entries: tuple[LogEntry, ...],
    read_bulk: ReadBulk,
    clock: Callable[[], int] = time.time_ns,
) -> tuple[LogEntry, ...]:
    """The entries as they are written for a caller who may have them written.

    Raises:
        PermissionDenied: the caller may not, or no client may.
        InvalidInputError: they are none that a client sends.
    """
    actor, now_ns = access.caller.author, clock()
    for entry in entries:
        _check(access, entry, read_bulk)
        if entry.signature is not None and entry.actor != actor:
            raise PermissionDenied(
                f"{entry.kind} {entry.note!r:.80} {_REWRITTEN_ACTOR} ({actor}). Sign it as that."
            )
    return tuple(
        entry
        if entry.signature is not None
        else msgspec.structs.replace(entry, actor=actor, time_ns=now_ns)
        for entry in entries
    )


def _check(access: RepositoryAccess, entry: LogEntry, read_bulk: ReadBulk) -> None:
    kind = entry.kind
    if kind in REF_KINDS:
        for update in updates_of(entry, read_bulk):
            _check_ref(access, update)
    elif kind == "config":
        _check_config(access, entry.data)
    elif kind in {"noop", "lease-open", "lease-close", "supersede", "shallow"}:
        if access.caller.level(access.name) in {None, Action.READ}:
            access.require(Action.WRITE)
        if kind == "supersede":  # its answer tells whether a placement is stored
            access.require(Action.READ)
    elif kind in _HERE_ALONE:
        raise PermissionDenied(
            f"{kind}: the service collects and purges by itself. Ask whoever runs it."
        )
    else:
        raise InvalidInputError(f"entries of kind {kind!r:.40} are unknown to this service")


def _check_ref(access: RepositoryAccess, update: Update) -> None:
    ref = check_ref(update.ref)
    if ref.startswith(SERVICE_SPACES) and not access.caller.mirrors(access.name, ref):
        raise PermissionDenied(
            f"{ref}: no push sets it. The service writes {', '.join(SERVICE_SPACES)} itself: use "
            "its API, or its pages. A token with the scope `mirror` copies them."
        )
    access.require(Action.WRITE, ref)


def _check_config(access: RepositoryAccess, data: Mapping[str, Any]) -> None:
    access.require(Action.ADMIN)
    changed = data.get("set")
    if not isinstance(changed, Mapping) or PACKS_KEY in changed:
        raise PermissionDenied(f"config: the service itself writes {PACKS_KEY}")


def check_against(
    state: State, access: RepositoryAccess, entry: LogEntry, *, is_new: Callable[[Digest], bool]
) -> None:
    """What an entry that moves no refs may do at a state; `is_new`: brought by this append.

    Raises:
        PermissionDenied: it would change what others rely on.
    """
    if entry.kind == "lease-close":
        lease = state.leases.get(str(entry.data.get("id")))
        if lease is not None and lease.holder != access.caller.author:
            access.require(Action.ADMIN)
    elif entry.kind == "shallow":
        added = entry.data.get("add")
        if entry.data.get("remove") or not isinstance(added, (list, tuple)):
            raise PermissionDenied("the service alone says where its history goes on")
        for digest in _digests(added):
            if not is_new(digest) and not access.may(Action.ADMIN):
                raise PermissionDenied(
                    f"history cannot be ended at {digest:.12}: that commit was here before, and "
                    f"{access.caller.name} does not administer {access.name}"
                )


def supersede_pairs(entry: LogEntry) -> Iterator[tuple[Digest, Digest]]:
    """Old and new placement of each that a ``supersede`` names."""
    placements = entry.data.get("placements")
    if not isinstance(placements, Mapping):
        raise InvalidInputError("supersede: expected placements")
    for old, new in placements.items():
        yield from zip(_digests([old]), _digests([new]), strict=True)


def kept_by(entry: LogEntry) -> Iterator[Digest]:
    """What a ``lease-open`` is to keep."""
    keep = entry.data.get("keep")
    if not isinstance(keep, (list, tuple)):
        raise InvalidInputError("lease-open: expected keep, a list of digests")
    yield from _digests(keep)


def _digests(values: object) -> Iterator[Digest]:
    assert isinstance(values, (list, tuple)), "checked before"
    for value in values:
        if not is_digest(value):
            raise InvalidInputError(f"{value!r:.80} is no digest")
        yield Digest(str(value))
