"""Repository core: a handle over a backend, its log and its objects.

The verbs are functions in `transaction`, `merge_branches`, `refs` and `revisions`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tensorrepo.repo.backends.base import AppendsEntries, Backend, Guarantee, TellsState
from tensorrepo.repo.backends.probe import probe
from tensorrepo.repo.backends.sql_log import RESTORED, SqlLogBackend
from tensorrepo.repo.changes.rules import ClientPolicy, refuse_forbidden
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import Commit, read_commit, some_changed, touches, walk
from tensorrepo.repo.history.merge_trees import Drivers
from tensorrepo.repo.history.trees import Entry, iterate, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import Appended, append
from tensorrepo.repo.log.log_slots import COPY_KEY, HINT_KEY, LogSlot
from tensorrepo.repo.log.past_commits import PastCommits
from tensorrepo.repo.log.reader import LogView, RepositoryLog, read_opening
from tensorrepo.repo.log.records import LogEntry, Update, decode_ref_updates
from tensorrepo.repo.log.segments import SegmentCommit, changed_filter
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.cache import DiskCache
from tensorrepo.repo.objects.envelope import encode_object
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.typed_decoding import from_json

IDENTITY_KEY = "repo.json"
_FILTERED_PATHS = 4096  # a commit that changed more has no filter in its segment
FORMAT = 1
SQL_FORMAT = 2  # the log is in a database: whoever does not know that must not open it
_MIRROR = (
    "this is a mirror, which takes no changes: `tensorrepo fetch` follows its origin. Change the "
    "origin, or `tensorrepo clone` the mirror."
)


class _Format(msgspec.Struct, frozen=True):
    """What every version of `repo.json` has, whatever else is in it."""

    format: int


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`repo.json`: which format, and which repository this is, for ever.

    `log` is ``sql`` where the log is in a database. In which one, the user's settings say.
    """

    format: int
    id: str
    log: Literal["sql"] | None = None


class CopyKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`copy.json`: what a repository is that is not whole, or not its own.

    A ``mirror`` has the log of `origin` and takes no commits; a ``lazy`` clone has all but the
    data, which is read from a remote. Where the origin is, the user's settings say, never this.
    `id` is the copy's own: a mirror has the id of its origin.
    """

    kind: Literal["mirror", "lazy"]
    origin: str
    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    version: Literal[1] = 1


def mark_copy(backend: Backend, kind: Literal["mirror", "lazy"], origin: str) -> None:
    """Say of a repository that it is such a copy of the one of id `origin`."""
    marker = CopyKind(kind, origin, secrets.token_hex(16))
    backend.create(COPY_KEY, (msgspec.json.encode(marker),))


@dataclass(frozen=True, slots=True)
class LocalState:
    """Folders on this machine that a client remembers in; all of it may be lost."""

    pending: Path | None = None  # appends whose outcome is unknown
    memory: Path | None = None  # the newest record seen of each repository
    cache: DiskCache | None = None


@dataclass(frozen=True, slots=True)
class RepositoryCore:
    """A repository at one URL. Safe to share between threads."""

    backend: Backend
    identity: Identity
    log: RepositoryLog
    objects: ObjectStore
    drivers: Drivers = field(default_factory=dict)
    past: PastCommits | None = None  # where commits are far away
    copy: CopyKind | None = None
    policy: ClientPolicy = field(default_factory=ClientPolicy)

    @property
    def url(self) -> str:
        return self.backend.url

    @property
    def id(self) -> str:
        return self.identity.id

    def append(
        self, decide: Callable[[LogView], tuple[LogEntry, ...]], *, merges: bool = False
    ) -> Appended:
        """Append to the log, see `append.append`. A record that completes a segment writes it.

        Raises:
            PermissionDenied: a rule of a branch forbids it; see `rules`. Nothing was written.
        """

        def allowed(view: LogView) -> tuple[LogEntry, ...]:
            entries = decide(view)
            refuse_forbidden(self.policy, self.objects, view, entries, self.log.read_bulk)
            return entries

        return append(self.log, allowed, commits=self.introduced, merges=merges)

    def entry(self, root: bytes, path: str) -> Entry | None:
        """The entry at `path` of a tree, as its content is stored now."""
        found = lookup(self.objects, root, path)
        return None if found is None else self.current(found)

    def entries(
        self, root: bytes, prefix: str = "", *, after: str = ""
    ) -> Iterator[tuple[str, Entry]]:
        """Paths that begin with `prefix` and their entries, as their content is stored now.

        Those up to and with `after` are left out.
        """
        for path, entry in iterate(self.objects, root, prefix, after=after):
            yield path, self.current(entry)

    def current(self, entry: Entry) -> Entry:
        """`entry` with the placement that took the place of its own, when it was repacked."""
        if entry.storage is None:
            return entry
        view = self.log.latest or self.log.refresh()
        storage = view.state.resolve(entry.storage)
        if storage == entry.storage:
            return entry
        return msgspec.structs.replace(entry, storage=storage)

    def touches(self, digest: Digest, commit: Commit, path: str) -> bool:
        """As `commits.touches`, which a filter in the log may spare from reading trees."""
        within = path.rstrip("/")
        denied = self.past is not None and within and not self.past.may_touch(digest, within)
        return not denied and touches(self.objects, commit, path)

    def close(self) -> None:
        self.backend.close()

    def introduced(self, slot: LogSlot) -> Iterator[SegmentCommit]:
        """The commits that a record brought, for the segment that it will be read from."""
        for entry in slot.record.entries:
            for update in filter(partial(self._introduces, entry.kind), entry.updates):
                tips, hidden = ([tip] if tip else [] for tip in (update.new, update.old))
                for digest, commit in walk(self.objects, tips, hidden=hidden):
                    envelope = self.objects.get(digest)
                    encoded = encode_object(envelope.kind, envelope.payload, envelope.links)
                    whole = b"".join(encoded.parts)
                    paths = changed_filter(some_changed(self.objects, commit, _FILTERED_PATHS))
                    yield SegmentCommit(slot.record.gen, digest, whole, paths)

    def _introduces(self, kind: str, update: Update) -> bool:
        """Whether a move brought commits: new ones, or one that took the place of another."""
        if kind != "ref-reset" or update.old is None or update.new is None:
            return kind == "commit"
        try:
            old, new = (read_commit(self.objects, each) for each in (update.old, update.new))
        except NotFoundError:  # collected meanwhile
            return False
        return old.parents == new.parents


def create_repository(
    backend: Backend, *, drivers: Drivers, local: LocalState, database: str | None = None
) -> RepositoryCore:
    """Make a repository where there is none.

    Args:
        backend: where.
        drivers: how entries of each kind are merged.
        local: where this client remembers things.
        database: URL of the SQL database that its log is to be in; None: the log is in `backend`.

    Raises:
        ConflictError: there is one already.
        PermissionDenied, StorageError: the store cannot be written to.
        UnsupportedError: the store can only be read, or breaks its promise about creates.
    """
    if backend.guarantee is Guarantee.READ_ONLY:
        raise UnsupportedError(f"{backend.url} can only be read: a repository must be written to")
    is_empty = backend.size(IDENTITY_KEY) is None
    if is_empty and probe(backend, races_ours=False) is not backend.guarantee:
        raise UnsupportedError(
            f"{backend.url} let two writers create the same key: commits would get lost. Whatever "
            "serves it ignores conditional writes; use another server, or a local folder."
        )
    conflict = ConflictError(
        f"there is a repository at {backend.url} already. Use it as it is, or name another URL."
    )
    if not is_empty:
        raise conflict
    identity = Identity(FORMAT, secrets.token_hex(16))
    if database is not None:
        identity = Identity(SQL_FORMAT, identity.id, "sql")
    data = msgspec.json.encode(identity) + b"\n"
    log = None if database is None else SqlLogBackend(backend, database, identity.id)
    if log is not None:
        log.prepare(data)  # first: a repository whose log has no place would be of no use
    if not backend.create(IDENTITY_KEY, (data,)):
        if log is not None:
            log.forget()
        raise conflict
    return open_repository(backend, drivers=drivers, local=local, database=lambda _: database)


def open_repository(
    backend: Backend,
    *,
    drivers: Drivers,
    local: LocalState | None = None,
    database: Callable[[str], str | None] = lambda _: None,
) -> RepositoryCore:
    """The repository that lies at `backend`.

    Args:
        backend: where it lies.
        drivers: how entries of each kind are merged.
        local: where this client remembers things; None remembers nothing.
        database: URL of the SQL database that has the log of the repository of an id; asked only
            where the log is in one.

    Raises:
        NotFoundError: there is none, or the database has no log of it.
        InvalidInputError: the log is in a database, and nothing says in which.
        UnsupportedError: its format is newer than this tensorrepo.
    """
    try:
        data, hint, copied = read_opening(backend)
    except NotFoundError:
        raise NotFoundError(
            f"no tensorrepo repository at {backend.url}: it has no {IDENTITY_KEY}. Check the URL, "
            f"or make one with `tensorrepo init {backend.url}`."
        ) from None
    if not data.endswith(b"\n"):
        # Was the answer cut short? Without its last byte it parses, but is another beginning of the
        # log: the first record, made to follow it, would be damaged for good.
        data = backend.read(IDENTITY_KEY)
    identity = _identity(data, backend.url)
    copy = None if copied is None else _copy_kind(copied, backend.url)
    is_mirror = copy is not None and copy.kind == "mirror"
    store, reason = backend, _MIRROR if is_mirror else None
    served = isinstance(backend, AppendsEntries)  # whoever serves it has the database
    if identity.log == "sql" and not is_mirror and not served:  # a mirror has a copy of the log
        table = _with_log(backend, identity, database)
        store = table.store
        hint = table.open_log(data, [HINT_KEY])[HINT_KEY]
        reason = RESTORED if table.is_restored() else None
        backend = table
    remembered = local or LocalState()
    memory = remembered.memory
    if memory is not None and copy is not None and is_mirror:
        # A mirror may lag behind its origin, whose name it has: each is remembered by itself.
        memory = memory / "mirrors" / copy.id

    def read_bulk(digest: Digest) -> tuple[Update, ...]:
        return decode_ref_updates(objects.get(digest).payload)

    log = RepositoryLog(
        backend,
        data,
        read_bulk,
        pending=remembered.pending,
        memory=memory,
        hint=hint,
    )
    log.read_only = reason
    is_part = isinstance(store, TellsState)  # whose log cannot be read
    past = PastCommits(log) if store.local_root is None and not is_part else None

    def standing() -> State | None:
        view = log.latest
        if view is None or not (view.state.supersedes or view.state.purges):
            return None
        return view.state

    objects = ObjectStore(
        store,
        condemned=lambda: log.latest.state.graves if log.latest else (),
        refresh=lambda: log.refresh().state.graves,
        cache=remembered.cache,
        past=None if past is None else past.get,
        shallow=lambda: log.latest.state.shallow if log.latest else frozenset(),
        packs=lambda: log.latest.state.history_packs if log.latest else (),
        standing=standing,
    )
    return RepositoryCore(backend, identity, log, objects, drivers, past, copy)


def _with_log(
    backend: Backend, identity: Identity, database: Callable[[str], str | None]
) -> SqlLogBackend:
    """`backend` with the log that is in a database; itself where it has it already."""
    if isinstance(backend, SqlLogBackend):
        return backend
    return SqlLogBackend(backend, _database(identity, backend.url, database), identity.id)


def _database(identity: Identity, url: str, database: Callable[[str], str | None]) -> str:
    found = database(identity.id)
    if found is None:
        raise InvalidInputError(
            f"the log of {url} is in a SQL database, and nothing here says in which. Set "
            f"TENSORREPO_LOG, or `tensorrepo config --global log.url`, to its URL, such as "
            "postgresql://user@host/database; who made the repository knows it."
        )
    return found


def _identity(data: bytes, url: str) -> Identity:
    try:
        found = from_json(data, _Format).format
        if found > SQL_FORMAT:
            raise UnsupportedError(
                f"{url} has repository format {found}, this tensorrepo knows {SQL_FORMAT}. "
                "Update tensorrepo."
            )
        identity = from_json(data, Identity)
    except (ValueError, RecursionError) as error:
        raise _damaged(url, str(error)) from error
    if identity.format != (FORMAT if identity.log is None else SQL_FORMAT):
        raise _damaged(url, f"format {found} never was")
    return identity


def _copy_kind(data: bytes, url: str) -> CopyKind:
    try:
        return from_json(data, CopyKind)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(
            f"{url}/{COPY_KEY} is damaged, or of a newer tensorrepo: {error}. Update tensorrepo, "
            "or clone anew."
        ) from error


def _damaged(url: str, why: str) -> CorruptError:
    return CorruptError(
        f"{url}/{IDENTITY_KEY} is damaged, or no tensorrepo repository's: {why}. `tensorrepo fsck "
        "--repair --from URL` puts it back from a mirror."
    )
