"""How does a file or a folder become a staged entry?

Reads what lies at a path, stores it as a dataset, a model or plain files, and stages the name.
Nothing is staged, and nothing of a workspace changes, before all of it is stored.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.models import read_model
from tensorrepo.formats.model.write import write_model
from tensorrepo.repo.attempt import tree_of
from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.store import ObjectWriter
from tensorrepo.repo.trees import Entry, iterate
from tensorrepo.repo.workspace import Staged, Tracked, changed_files, describe_files
from tensorrepo.workspace.session import entry_at
from tensorrepo.workspace.staging import begin_staging, change, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tensorrepo.repo.ids import Digest
    from tensorrepo.workspace.session import Session


SMALL_FILE_BYTES = 1 << 20


class Mode(Enum):
    """What to do with a name that exists."""

    NEW = "new"
    APPEND = "append"
    SYNC = "sync"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be added. `space` is the top folder of the tree: datasets, models or files."""

    source: Path
    space: str
    name: str
    mode: Mode = Mode.NEW
    format: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{self.space}/{self.name}"


@dataclass(frozen=True, slots=True)
class Added:
    """One entry that was staged; `changed` False: the name held exactly that already."""

    path: str
    rows: int
    bytes: int
    changed: bool
    notes: tuple[str, ...] = ()


def add(session: Session, request: Request, progress: Callable[[int], None]) -> list[Added]:
    """Store what lies at a path, and stage it.

    Args:
        session: the workspace and its repository.
        request: what, and as what.
        progress: told the bytes done so far.

    Raises:
        ConflictError: the name exists and no mode was given, or HEAD is detached.
        InvalidInputError: the source cannot be used; nothing was staged.
        NotFoundError: there is no such path.
    """
    source = request.source
    if not source.exists():
        raise NotFoundError(f"there is no {source} to add")
    begin_staging(session)  # refuses a detached HEAD before anything is read
    if request.space == "files":
        return _add_files(session, request)
    existing = _existing(session, request)
    writer = _writer(session)
    try:
        adder = _add_dataset if request.space == "datasets" else _add_model
        entry, added = adder(session, request, existing, writer, progress)
        writer.flush()
    except BaseException:
        writer.abort()
        raise
    if added.changed:
        shown = change(entry, rows=added.rows, size_bytes=added.bytes, source=str(source))
        stage(session, {request.path: shown})
        _track(session, request, entry)
    return [added]


def tracked_request(session: Session, source: Path) -> Request:
    """The request for a path that `checkout` wrote: it knows its name, and means sync.

    Raises:
        InvalidInputError: nobody wrote that path; says what to give.
    """
    root = session.here.root
    place = source.resolve()
    for path, tracked in session.here.tracked().items():
        if (root / path).resolve() == place:
            space, _, name = tracked.entry.partition("/")
            return Request(source, space, name, Mode.SYNC, tracked.format)
    raise InvalidInputError(
        f"what is {source} to be? Give --dataset NAME, --model NAME or --file NAME. (Only what "
        "`tensorrepo checkout` wrote knows its name.)"
    )


def _existing(session: Session, request: Request) -> Entry | None:
    existing = entry_at(session, request.path)
    if existing is not None and request.mode is Mode.NEW:
        raise ConflictError(
            f"{request.path} exists. Say what you mean: --append adds rows to it, --sync makes it "
            "what the path is now, --replace starts it anew."
        )
    if request.mode is Mode.APPEND and request.space != "datasets":
        raise InvalidInputError("--append adds rows to datasets; use --sync or --replace here")
    return existing


def _add_dataset(
    session: Session,
    request: Request,
    existing: Entry | None,
    writer: ObjectWriter,
    progress: Callable[[int], None],
) -> tuple[Entry, Added]:
    if existing is not None and existing.kind is not Kind.DATASET:
        raise ConflictError(f"{request.path} is a {existing.kind.label}, not a dataset")
    if existing is not None and request.mode is Mode.SYNC and _is_unchanged(session, request):
        return existing, Added(request.path, 0, 0, changed=False)
    reading = registry.read(request.source, request.format, **request.options)
    appends = request.mode is Mode.APPEND and existing is not None
    base = open_dataset(writer, existing.digest) if appends and existing else None
    link = write_dataset(
        writer,
        reading.schema,
        reading.batches,
        base=base,
        progress=lambda _, done: progress(done),
    )
    entry = Entry(Kind.DATASET, link.digest)
    rows = len(open_dataset(writer, link.digest)) - (len(base) if base else 0)
    changed = existing is None or existing.digest != entry.digest
    return entry, Added(request.path, rows, reading.bytes, changed, tuple(reading.notes))


def _add_model(
    session: Session,
    request: Request,
    existing: Entry | None,
    writer: ObjectWriter,
    progress: Callable[[int], None],
) -> tuple[Entry, Added]:
    if request.options:
        raise InvalidInputError(f"models take no options, got {', '.join(request.options)}")
    source = read_model(request.source, request.format)
    entry = write_model(
        writer,
        source,
        known=known_placements(session, writer),
        progress=lambda _, done: progress(done),
    )
    changed = existing is None or existing.digest != entry.digest
    return entry, Added(request.path, 0, source.tensor_bytes, changed, source.notes)


def known_placements(session: Session, objects: ObjectWriter) -> tuple[Digest, ...]:
    """Placements of the models that the commit to build on has: their tensors are stored already."""
    tree = tree_of(objects, session.base())
    return tuple(
        entry.storage for _, entry in iterate(objects, tree, "models/") if entry.storage is not None
    )


def _add_files(session: Session, request: Request) -> list[Added]:
    """Store a file, or each file of a folder, as it is."""
    source = request.source
    if source.is_dir():
        parts = {f"{request.name}/{name}": source / name for name in sorted(describe_files(source))}
        if not parts:
            raise InvalidInputError(f"{source} is an empty folder: there is nothing to add")
    else:
        parts = {request.name: source}
    requests = [Request(place, "files", name, request.mode) for name, place in parts.items()]
    existing = [_existing(session, one) for one in requests]
    writer = _writer(session)
    entries = [Entry(Kind.BLOB, _put_file(writer, one.source)) for one in requests]
    writer.flush()
    changes: dict[str, Staged] = {}
    added = []
    for one, old, entry in zip(requests, existing, entries, strict=True):
        size = one.source.stat().st_size
        changed = old is None or old.digest != entry.digest
        added.append(Added(one.path, 0, size, changed))
        if changed:
            changes[one.path] = change(entry, size_bytes=size, source=str(one.source))
    if changes:
        stage(session, changes)
    return added


def _put_file(writer: ObjectWriter, path: Path) -> Digest:
    """Store a file as one blob; a large one is mapped, so that memory stays small."""
    try:
        size = path.stat().st_size
        if size <= SMALL_FILE_BYTES:
            return writer.put(Kind.BLOB, path.read_bytes()).digest
        with path.open("rb") as file:
            # Not closed by hand: the writer looks at the map until `flush`, then it goes by itself.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        link = writer.put(Kind.BLOB, memoryview(mapped))
        writer.flush()
    except PermissionError as error:
        raise PermissionDenied(f"{path}: permission denied. Check who may read it.") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    return link.digest


def _writer(session: Session) -> ObjectWriter:
    return ObjectWriter(session.repository.objects, session.repository.log.refresh().state.graves)


def _is_unchanged(session: Session, request: Request) -> bool:
    """Whether a tracked path still looks as it was written out."""
    tracked = _tracked_at(session, request)
    if tracked is None:
        return False
    path, written = tracked
    entry = entry_at(session, request.path)
    same = entry is not None and entry.digest == written.digest
    return same and not changed_files(session.here.root, path, written)


def _tracked_at(session: Session, request: Request) -> tuple[str, Tracked] | None:
    place = request.source.resolve()
    for path, tracked in session.here.tracked().items():
        if tracked.entry == request.path and (session.here.root / path).resolve() == place:
            return path, tracked
    return None


def _track(session: Session, request: Request, entry: Entry) -> None:
    """A tracked path that was added is what the staged entry is now."""
    found = _tracked_at(session, request)
    if found is None:
        return
    path, tracked = found
    files = describe_files(session.here.root / path)
    now = Tracked(tracked.entry, entry.digest, tracked.format, files)
    session.here.write_tracked({**session.here.tracked(), path: now})
