"""Purges: erasure of data from all history, by twins that stand for what was erased.

An entry of the log maps the digest of what held the data (a dataset's root, a view, a model) to a
twin that never had it. Commits, trees and refs keep their names: whoever follows a link gets the
twin, as with `supersede`. What only the old ones led to is named as well, without a twin: nobody
may read, adopt or receive it again, and garbage collection takes it at once, whatever its age.

    1. make the twins of all that any root of the state leads to     the caller's `rewrite`
    2. what do only the old ones lead to?                            `_only_before`
    3. one record, if the state is still the one that was looked at  `append_purge`

Before the record everything is as it was, and the twins are garbage. After it everybody sees the
new history, and the old objects are garbage. There is nothing between.

Source:
    docs/spec/log.md, section "Purges"; docs/design/071-a-purge-maps-roots-to-twins.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Final

from tensorrepo.repo.changes.gc_fence import closure
from tensorrepo.repo.changes.gc_marks import Marks, ObjectTable
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import refuse_purge
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import read_commit, walk
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, differences
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import (
    MAX_RECORD_BYTES,
    MAX_REF_BYTES,
    LogEntry,
    Update,
    canonical_json,
    encode_ref_updates,
)
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter

PURGE: Final = "purge"
MOST_NAMES_BYTES: Final = MAX_RECORD_BYTES * 3 // 4  # the reason stands in the record, too
_TRIES: Final = 8
_HELD_ALONE: Final = frozenset({Kind.DATASET, Kind.VIEW, Kind.SEARCH_INDEX})  # by leases
# They hold ids and counts, or headers of files, and come about in the same form again.
_WITHOUT_VALUES: Final = frozenset({Kind.DELETION_MAP, Kind.ROW_RUNS, Kind.FOREIGN, Kind.BLOB})

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry of a tree in history.

    Attributes:
        path: its path; "" for what a lease keeps without a tree.
        entry: what the tree says of it.
        commit: newest commit that was found to have brought it.
    """

    path: str
    entry: Entry
    commit: Digest


@dataclass(frozen=True, slots=True)
class Twins:
    """What a purge puts in the place of what.

    Attributes:
        twins: old digest to new.
        where: path of each old one, for people.
        tainted: objects that hold what is erased, and that nothing may lead to afterwards.
        rows: ids of erased rows as RUN records in bytes ({doc}`dataset`); none: no rows are erased.
        columns: path of each dataset to the columns that are erased of it, id to name; of a model,
            fingerprint to name of its tensors.
    """

    twins: Mapping[Digest, Digest]
    where: Mapping[Digest, str]
    tainted: frozenset[Digest]
    rows: bytes = b""
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PurgeRecord:
    """A purge in the log.

    Attributes:
        generation: number of its record.
        actor, time_ns, reason: as the log tells them.
        erased: digest of what was erased to that of its twin, or None.
        where: path of each that has a twin.
    """

    generation: int
    actor: str
    time_ns: int
    reason: str
    erased: Mapping[Digest, Digest | None]
    where: Mapping[Digest, str]


Rewrite = Callable[[LogView, ObjectWriter], Twins]


def held_entries(repository: RepositoryCore, state: State) -> Iterator[HeldEntry]:
    """Every entry of every tree that roots of a state lead to, each content once per path."""
    objects = repository.objects
    commits: list[Digest] = []
    others: list[Digest] = []
    roots = [*state.refs.values(), *state.retained]
    roots += [digest for lease in state.leases.values() for digest in lease.keep]
    for digest in dict.fromkeys(roots):
        is_commit = objects.describe(digest).kind is Kind.COMMIT
        (commits if is_commit else others).append(digest)
    seen: set[tuple[str, Digest, Digest | None]] = set()
    for digest, commit in walk(objects, commits):
        parents = commit.parents[:1]
        before = read_commit(objects, parents[0]).tree if parents else EMPTY_TREE
        for change in differences(objects, before, commit.tree):
            for entry in (change.old, change.new):
                if entry is None or (key := (change.path, entry.digest, entry.storage)) in seen:
                    continue
                seen.add(key)
                yield HeldEntry(change.path, entry, digest)
    for digest in others:
        for found in closure(objects, [digest], state.supersedes):
            kind = objects.describe(found).kind
            if kind in _HELD_ALONE and ("", found, None) not in seen:
                seen.add(("", found, None))
                yield HeldEntry("", Entry(kind, found), digest)


def append_purge(
    repository: RepositoryCore,
    rewrite: Rewrite,
    *,
    actor: str,
    reason: str,
    progress: Progress = lambda _what, _done, _total: None,
) -> PurgeRecord | None:
    """Put twins in the place of what they were made of, by one record; None: nothing is erased.

    Args:
        repository: where.
        rewrite: stores the twins of all that the state leads to; it is called again for a newer
            view when the state changed meanwhile, and may remember what it made.
        actor: who, as the log tells it.
        reason: why, as the log tells it.
        progress: callback that receives what is being done, how much is done, and of how much.

    Raises:
        InvalidInputError: something that is not rewritten holds the same bytes.
        PermissionDenied: a rule says who may move some branches, and `actor` is not among them.
        ConflictError: others changed the repository, again and again. Nothing was changed.
        UnsupportedError: a newer version uses this repository.
    """
    for _ in range(_TRIES):
        view = repository.log.refresh()
        if (cause := view.state.read_only_reason) is not None:
            raise UnsupportedError(f"nothing is purged in {repository.url}: {cause}")
        refuse_purge(view.state, actor)
        writer = ObjectWriter(repository.objects, view.state.graves)
        try:
            found = rewrite(view, writer)
            writer.flush()
        except BaseException:
            writer.abort()
            raise
        if not found.twins:
            return None
        gone = _only_before(repository, view.state, found, progress)
        erased: dict[Digest, Digest | None] = {**dict.fromkeys(gone), **found.twins}
        if (record := _append(repository, view, writer, erased, found, actor, reason)) is not None:
            return record
    raise ConflictError(
        f"{repository.url} changed {_TRIES} times while the purge was being made, so nothing was "
        "purged. Run it again when fewer write to it: what it stored is found again."
    )


def purge_records(repository: RepositoryCore) -> Iterator[PurgeRecord]:
    """All purges of a repository, oldest first."""
    state = repository.log.refresh().state
    for generation in sorted(set(state.purges.values())):
        (record,) = repository.log.records(generation, generation + 1)
        for entry in record.entries:
            if entry.kind == PURGE:
                bulk = () if entry.bulk is None else repository.log.read_bulk(entry.bulk)
                updates = [each for each in (*entry.updates, *bulk) if each.old is not None]
                if all(state.purges.get(each.old) == generation for each in updates if each.old):
                    yield _record(generation, entry, updates)


def _record(generation: int, entry: LogEntry, updates: Iterable[Update]) -> PurgeRecord:
    pairs = [(each.old, each.new, each.ref) for each in updates if each.old is not None]
    return PurgeRecord(
        generation,
        entry.actor,
        entry.time_ns,
        entry.note,
        {old: new for old, new, _ in pairs},
        {old: ref.removeprefix(f"{PURGE}:") for old, new, ref in pairs if new is not None},
    )


def _append(
    repository: RepositoryCore,
    planned: LogView,
    writer: ObjectWriter,
    erased: Mapping[Digest, Digest | None],
    found: Twins,
    actor: str,
    reason: str,
) -> PurgeRecord | None:
    """The record, unless the state is another than was looked at."""
    columns = {path: dict(each) for path, each in found.columns.items()}
    if (size := len(canonical_json(columns))) > MOST_NAMES_BYTES:
        raise InvalidInputError(
            f"the purge names {sum(map(len, columns.values())):,} columns or tensors of "
            f"{len(columns):,} entries, which takes {size:,} bytes; a record of the log has room "
            f"for {MOST_NAMES_BYTES:,}. Purge some of them after the others. Nothing was changed."
        )
    updates = [
        Update(_label(found.where.get(old, "")), old, new) for old, new in sorted(erased.items())
    ]
    bulk = writer.put(Kind.REF_UPDATES, encode_ref_updates(updates)).digest
    rows = (writer.put(Kind.BLOB, found.rows).digest,) if found.rows else ()
    writer.flush()
    data = {"columns": columns, "rows": rows}
    txn = secrets.token_hex(16)
    entry = LogEntry(txn, PURGE, actor, time.time_ns(), reason, bulk=bulk, data=data)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        same = replace(view.state, generation=planned.generation) == planned.state
        return (entry,) if same else ()

    appended = repository.append(decide)
    return _record(appended.generation, entry, updates) if appended.record else None


def _label(path: str) -> str:
    return f"{PURGE}:{path}".encode()[:MAX_REF_BYTES].decode(errors="ignore")


def _only_before(
    repository: RepositoryCore, state: State, found: Twins, progress: Progress
) -> list[Digest]:
    """What roots lead to now, and not once the twins stand for the others.

    Raises:
        InvalidInputError: something tainted would still be reached.
    """
    store = repository.objects
    after = replace(state, supersedes={**state.supersedes, **found.twins})
    table = ObjectTable(repository.backend, partial(progress, "listing"))
    marks = Marks(store, table, after, partial(progress, "marking"))
    try:
        marks.mark(dict.fromkeys(after.roots()))
    except NotFoundError as error:
        raise CommitExpired(
            f"{repository.url}: {error} Nothing was purged. `tensorrepo fsck` tells what is "
            "missing; history is purged only where all of it can be read."
        ) from error
    if left := sorted(digest for digest in found.tainted if marks.holds(digest)):
        raise InvalidInputError(
            f"{len(left)} objects hold what is to be erased, and something that is not named leads "
            f"to them, too: {left[0]:.12} of {_holders(repository, state, found, left)}. Name "
            "that in the same purge. Nothing was changed."
        )
    old = closure(store, found.twins, state.supersedes, stop=marks.holds)
    return [
        digest
        for digest in old
        if digest not in found.twins
        and (digest in found.tainted or store.describe(digest).kind not in _WITHOUT_VALUES)
    ]


def _holders(repository: RepositoryCore, state: State, found: Twins, left: Iterable[Digest]) -> str:
    """Paths of entries that lead to some of `left` when the twins are there."""
    wanted, paths = set(left), set[str]()
    after = {**state.supersedes, **found.twins}
    for held in held_entries(repository, state):
        roots = [each for each in (held.entry.digest, held.entry.storage) if each is not None]
        if not wanted.isdisjoint(closure(repository.objects, roots, after)):
            paths.add(held.path or f"what {held.commit:.12} keeps")
    return ", ".join(sorted(paths)) or "the log"
