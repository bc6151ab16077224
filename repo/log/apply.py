"""Application of log records to a repository state (the fold).

The fold is total: whatever a well-formed record says, it has one outcome, the same for every
client. Entries are judged one after the other, each against the state that the one before left.
An entry that does not fit it is void: it stays in the log, has no effect, and the verdict says
why. A writer reads from here whether it won.

Source:
    docs/spec/log.md, sections "Fold" and "Kinds".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import (
    FIRST_KINDS,
    KINDS,
    REF_KINDS,
    LogEntry,
    LogRecord,
    Update,
    is_digest,
)
from tensorrepo.repo.log.state import (
    CONFIG_KEYS,
    KNOWN_FEATURES,
    Condemnation,
    Lease,
    State,
    Verdict,
    config_problem,
)

Shape = dict[str, Callable[[object], bool]]  # what the members of `data` must be

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
TAGS = "tags/"
PURGE = "purge"
_DROPPING_KINDS = frozenset({"ref-delete", "ref-reset"})


class _Void(Exception):  # no error: how a judgement ends
    """The entry has no effect."""


class Folding:
    """A state that records are added to: copies each mapping once."""

    def __init__(self, state: State) -> None:
        self._untouched: State | None = state
        self.generation = state.generation
        self.refs = dict(state.refs)
        self.retained = dict(state.retained)
        self.leases = dict(state.leases)
        self.graves = list(state.graves)
        self.supersedes = dict(state.supersedes)
        self.config = dict(state.config)
        self.shallow = set(state.shallow)
        self.purges = dict(state.purges)
        self.purged_rows = dict(state.purged_rows)
        self.purged_columns = dict(state.purged_columns)
        self.bulks = set(state.bulks)
        self.kinds = set(state.kinds)

    def state(self) -> State:
        """What it holds now, as a value: the very one it began with until something is added."""
        if self._untouched is not None:
            return self._untouched
        return State(
            self.generation,
            dict(self.refs),
            dict(self.retained),
            dict(self.leases),
            tuple(self.graves),
            dict(self.supersedes),
            dict(self.config),
            frozenset(self.shallow),
            dict(self.purges),
            dict(self.purged_rows),
            dict(self.purged_columns),
            frozenset(self.bulks),
            frozenset(self.kinds),
        )

    def add(
        self, record: LogRecord, bulk: Callable[[Digest], tuple[Update, ...]]
    ) -> tuple[Verdict, ...]:
        """Judge the entries of the next record.

        `bulk` gives the updates of a ref-updates object. Where it raises InvalidInputError (the
        object is none) the entry is void; its other errors pass through, because what could not be
        read now may be read later.
        """
        alone = len(record.entries) == 1
        if alone and record.entries[0].bulk is None:  # as nearly all
            self._untouched = None
            self.generation = record.gen
            return (self._judge(record.entries[0], record.entries[0].updates, alone=True),)
        # Read before anything changes: an object that cannot be read leaves the state as it was.
        updates = [_all_updates(entry, bulk) for entry in record.entries]
        self._untouched = None
        self.generation = record.gen
        return tuple(
            self._judge(entry, found, alone=alone)
            for entry, found in zip(record.entries, updates, strict=True)
        )

    def _judge(self, entry: LogEntry, updates: tuple[Update, ...] | str, *, alone: bool) -> Verdict:
        if entry.bulk is not None:
            self.bulks.add(entry.bulk)
        try:
            self._apply(entry, updates, alone=alone)
        except _Void as void:
            return Verdict(entry.txn, entry.kind, applied=False, reason=str(void))
        return Verdict(entry.txn, entry.kind, applied=True)

    def _apply(self, entry: LogEntry, updates: tuple[Update, ...] | str, *, alone: bool) -> None:
        if entry.kind not in FIRST_KINDS:
            self.kinds.add(entry.kind)
        if entry.kind not in KINDS:
            raise _Void(f"kind {entry.kind!r} is unknown to this version")
        if isinstance(updates, str):
            raise _Void(updates)
        if entry.kind in REF_KINDS:
            if entry.data:
                _expect(entry, {})
            self._move_refs(entry.kind, updates)
            return
        if entry.kind == PURGE:
            self.kinds.add(entry.kind)  # as for a version that does not know it
            data = _expect(entry, {"columns": _are_columns, "rows": _are_digests})
            self._purge(updates)
            self.purged_rows |= dict.fromkeys(data["rows"], self.generation)
            for path, columns in data["columns"].items():
                known = self.purged_columns.get(path, {})
                self.purged_columns[path] = {**known, **columns}
            return
        if updates or entry.bulk is not None:
            raise _Void(f"{entry.kind} moves no refs")
        if entry.kind == "gc-condemn" and not alone:
            # Another entry may make reachable what the collector judged to be garbage.
            raise _Void("gc-condemn must be alone in its record")
        _HANDLERS[entry.kind](self, entry)

    def _move_refs(self, kind: str, updates: tuple[Update, ...]) -> None:
        if not updates:
            raise _Void("names no ref")
        if len(updates) > 1 and len({update.ref for update in updates}) < len(updates):
            raise _Void("names a ref twice")
        for update in updates:
            self._check_update(kind, update)
        for update in updates:
            if kind in _DROPPING_KINDS and update.old is not None:
                self.retained[update.old] = self.generation
            if update.new is None:
                del self.refs[update.ref]
            else:
                self.refs[update.ref] = update.new

    def _purge(self, updates: tuple[Update, ...]) -> None:
        erased = {update.old: update.new for update in updates if update.old is not None}
        if not updates or len(erased) < len(updates):
            raise _Void("names nothing to purge, or something twice")
        for old, new in sorted(erased.items()):
            if old in self.purges:
                raise _Void(f"{old} was purged already")
            if new is None:
                continue
            if old in self.supersedes:
                raise _Void(f"{old} was superseded already, by {self.supersedes[old]}")
            if new in erased or new in self.supersedes or new in self.purges:
                # Else old -> new -> .. -> old could close a circle.
                raise _Void(f"twin {new} was purged or superseded itself")
        self.supersedes |= {old: new for old, new in erased.items() if new is not None}
        self.purges |= dict.fromkeys(erased, self.generation)

    def _check_update(self, kind: str, update: Update) -> None:
        ref, old, new = update.ref, update.old, update.new
        if (problem := _shape_problem(kind, update)) is not None:
            raise _Void(problem)
        if (found := self.refs.get(ref)) != old:
            raise _Void(f"{ref!r} is {found or 'absent'}, the entry expected {old or 'absent'}")
        if ref.startswith(TAGS) and old is not None and new is not None:
            raise _Void(f"{ref!r} is a tag, and tags never move")
        if kind in _DROPPING_KINDS and old is not None and self._is_protected(ref):
            raise _Void(f"{ref!r} is protected: it may neither be deleted nor reset")

    def _is_protected(self, ref: str) -> bool:
        patterns = self.config.get("protected_refs", ())
        assert isinstance(patterns, (list, tuple))
        return any(
            ref.startswith(pattern[:-1]) if pattern.endswith("*") else ref == pattern
            for pattern in map(str, patterns)
        )


def _open_lease(held: Folding, entry: LogEntry) -> None:
    data = _expect(entry, {"id": _is_name, "keep": _are_digests, "expires": _is_time})
    if data["id"] in held.leases:
        raise _Void(f"lease {data['id']!r} is open already")
    keep = tuple(data["keep"])
    held.leases[data["id"]] = Lease(entry.actor, held.generation, entry.note, keep, data["expires"])


def _close_lease(held: Folding, entry: LogEntry) -> None:
    data = _expect(entry, {"id": _is_name})
    if held.leases.pop(data["id"], None) is None:
        raise _Void(f"lease {data['id']!r} is not open")


def _condemn(held: Folding, entry: LogEntry) -> None:
    shape: Shape = {
        "at": _is_natural,
        "list": is_digest,
        "graves": is_digest,
        "release": _are_digests,
    }
    data = _expect(entry, shape)
    # A collector judged what is reachable after the record before this one. In any other
    # slot its judgement is worth nothing.
    if data["at"] != held.generation:
        raise _Void(f"was decided for generation {data['at']}, not {held.generation}")
    held.graves.append(Condemnation(held.generation, data["list"], data["graves"]))
    for digest in data["release"]:
        held.retained.pop(digest, None)


def _end_gc(held: Folding, entry: LogEntry) -> None:
    data = _expect(entry, {"generation": _is_natural})
    for place, grave in enumerate(held.graves):
        if grave.generation == data["generation"] and not grave.ended:
            held.graves[place] = Condemnation(
                grave.generation, grave.list, grave.graves, ended=True
            )
            return
    raise _Void(f"no gc-condemn of generation {data['generation']} waits for its end")


def _merge_graves(held: Folding, entry: LogEntry) -> None:
    data = _expect(entry, {"generations": _are_naturals, "graves": is_digest})
    merged = {grave.generation: grave for grave in held.graves if grave.ended}
    names = data["generations"]
    if len(names) < 2 or sorted(set(names)) != list(names) or not merged.keys() >= set(names):
        raise _Void("names generations, ascending, of two or more gc-condemn that have ended")
    last = merged[names[-1]]
    one = Condemnation(last.generation, last.list, data["graves"], ended=True)
    held.graves = [
        one if grave is last else grave
        for grave in held.graves
        if grave is last or grave.generation not in names
    ]


def _supersede(held: Folding, entry: LogEntry) -> None:
    placements = _expect(entry, {"placements": _is_digest_map})["placements"]
    merged = dict(held.supersedes)
    for old, new in sorted(placements.items()):
        if old in merged:
            raise _Void(f"placement {old} was superseded already, by {merged[old]}")
        if new in merged or new == old or new in held.purges:
            # Else old -> new -> .. -> old could close a circle.
            raise _Void(f"placement {new} was superseded or purged itself")
        merged[old] = new
    held.supersedes = merged


def _set_shallow(held: Folding, entry: LogEntry) -> None:
    data = _expect(entry, {"add": _are_digests, "remove": _are_digests})
    held.shallow = (held.shallow | set(data["add"])) - set(data["remove"])


def _set_config(held: Folding, entry: LogEntry) -> None:
    changes = _expect(entry, {"set": lambda value: isinstance(value, dict)})["set"]
    for key, value in changes.items():
        removed = value is None and key in CONFIG_KEYS
        problem = None if removed else config_problem(key, value)
        if problem is not None and not (key not in CONFIG_KEYS and _needs_newer(changes)):
            raise _Void(problem)
    for key, value in changes.items():
        if value is None:
            held.config.pop(key, None)
        elif key in CONFIG_KEYS:
            held.config[key] = value


_HANDLERS: dict[str, Callable[[Folding, LogEntry], object]] = {
    "lease-open": _open_lease,
    "lease-close": _close_lease,
    "gc-condemn": _condemn,
    "gc-end": _end_gc,
    "gc-merge": _merge_graves,
    "supersede": _supersede,
    "shallow": _set_shallow,
    "config": _set_config,
    "noop": lambda _, entry: _expect(entry, {}),
}


def _needs_newer(changes: dict[str, Any]) -> bool:
    """Whether the entry requires a feature that makes this version read-only.

    Keys that are unknown here then belong to that feature and are no reason to void it.
    """
    features = changes.get("features", [])
    well_formed = config_problem("features", features) is None
    return well_formed and not set(features) <= KNOWN_FEATURES


def _all_updates(
    entry: LogEntry, bulk: Callable[[Digest], tuple[Update, ...]]
) -> tuple[Update, ...] | str:
    """The updates of an entry, or why they cannot be told."""
    if entry.bulk is None or entry.kind not in REF_KINDS | {PURGE}:
        return entry.updates
    try:
        return entry.updates + bulk(entry.bulk)
    except InvalidInputError as error:
        return f"its bulk {entry.bulk} is no ref-updates object: {error}"


def _shape_problem(kind: str, update: Update) -> str | None:
    ref, old, new = update.ref, update.old, update.new
    match kind:
        case "ref-delete":
            good = old is not None and new is None
            return None if good else f"ref-delete takes {ref!r} from a value to none"
        case "ref-create":
            good = old is None and new is not None
            return None if good else f"ref-create takes {ref!r} from none to a value"
        case "tag":
            good = old is None and new is not None and ref.startswith(TAGS)
            return None if good else f"tag takes a ref under {TAGS} from none to a value, not {ref}"
    return None if new is not None else f"{kind} gives {ref!r} a value"


def _expect(entry: LogEntry, shape: Shape) -> dict[str, Any]:
    """`entry.data`, which must have exactly the members of `shape`, each as its test says."""
    if entry.data.keys() != shape.keys():
        expected = ", ".join(sorted(shape)) or "nothing"
        raise _Void(f"data of {entry.kind} must hold {expected}")
    for name, test in shape.items():
        if not test(entry.data[name]):
            raise _Void(f"data of {entry.kind}: {name} cannot be {entry.data[name]!r:.80}")
    return dict(entry.data)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_naturals(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_natural, value))


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _are_digests(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(is_digest(item) for item in value)


def _are_columns(value: object) -> bool:
    """Whether `value` maps paths to the columns that were erased there: id to name."""
    return isinstance(value, dict) and all(
        isinstance(columns, dict) and all(isinstance(name, str) for name in columns.values())
        for columns in value.values()
    )


def _is_digest_map(value: object) -> bool:
    return isinstance(value, dict) and all(is_digest(k) and is_digest(v) for k, v in value.items())
