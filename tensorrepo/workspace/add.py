"""Adding of files and folders: stored as a dataset, a model or plain files, then staged.

Nothing is staged, and nothing of a workspace changes, before all of it is stored. Of a long `add`
of a dataset what is stored so far is made durable after every stretch, kept by the lease of the
staging area and noted in the workspace. The same command on the same files goes on behind it.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from tensorrepo.context import Context
from tensorrepo.datasets.draft import DatasetDraft
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.buffer_codecs import parse_codec
from tensorrepo.formats.dataset.evolve import add_lineage, set_properties
from tensorrepo.formats.dataset.metadata.index import pictures_in_bands
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits, batch_rows
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Image, InputBatch, Schema
from tensorrepo.formats.dataset.unique_key import check_declared_key
from tensorrepo.formats.dataset.write import CHECKPOINT_BYTES, ingest
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.formats.exchange.remote import RemotePlace
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.verbs.exchange import (
    AdoptionRequest,
    SourceProgress,
    adopt,
    fetch_source,
    kept_columns,
    of_source,
    remote_place,
)
from tensorrepo.verbs.on_workers import pieces_of, store_on_workers
from tensorrepo.verbs.provenance import edge_of_reading
from tensorrepo.verbs.seen_objects import SeenObjects, options_digest
from tensorrepo.verbs.sync import SyncOptions, source_edges, sync
from tensorrepo.workspace.add_files import add_files, links_under, notes_of_links
from tensorrepo.workspace.add_model import add_model
from tensorrepo.workspace.add_request import (
    SYNC_MODES,
    Added,
    AddMode,
    AddRequest,
    StoredEntry,
    behind,
    check_source,
    existing_entry,
    origins,
)
from tensorrepo.workspace.session import WorkspaceSession, next_commit
from tensorrepo.workspace.staged_lease import held, keep_alive
from tensorrepo.workspace.staging import WorkspaceStage, begin_stage
from tensorrepo.workspace.state import Tracked, Unfinished, changed_files, describe_files
from tensorrepo.workspace.tracking import TrackedPaths, track


def ingest_dataset(
    session: WorkspaceSession,
    request: AddRequest,
    reading: OpenedSource,
    writer: ObjectWriter,
    base: StoredDataset | None,
    misfits: Misfits,
    progress: SourceProgress,
    since: int,
) -> tuple[ObjectLink, int, int]:
    """Store what was opened, behind `base` if there is one.

    Returns:
        The root, how many rows an earlier run had stored, and where the log stood before any of it
        was: `since`, where this run did all.
    """
    source = _fingerprint(request) if reading.bytes >= CHECKPOINT_BYTES else ""
    known = _gone_on(session, request, source, base) if source else None
    if known is not None and known.generation is not None:
        since = min(since, known.generation)

    def checkpoint(link: ObjectLink, rows: int) -> None:
        if source:
            writer.flush()
            told = rows, misfits.skipped, misfits.nulled, since
            _note(session, request, Unfinished(source, _digest(base), link.digest, *told))

    if known:
        misfits.skipped, misfits.nulled = known.skipped, known.nulled
    link = ingest(
        writer,
        _new_schema(request, reading) if base is None else _schema_to_append(base, reading.schema),
        reading.batches,
        checkpoint,
        base=open_dataset(writer, known.root) if known else base,
        skip_rows=known.rows if known else 0,
        checkpoint_bytes=CHECKPOINT_BYTES,
        misfits=misfits,
        progress=of_source(reading, progress),
        codec=parse_codec(request.codec),
    )
    made = open_dataset(writer, link.digest)
    edges = source_edges(writer, reading, made) if base is None else [edge_of_reading(reading)]
    link = add_lineage(writer, made, [*edges, *origins(session, request)])
    return link, known.rows if known else 0, since


def _store_on_workers(
    stage: WorkspaceStage,
    request: AddRequest,
    workers: Context,
    reading: OpenedSource,
    base: StoredDataset | None,
    progress: SourceProgress,
) -> ObjectLink:
    """Let workers of a cluster store what was opened, behind `base` if there is one."""
    if request.on_error != "raise":
        raise InvalidInputError("--on-error is for rows that this process stores: no --executor")
    writer, told = stage.objects, request.format or reading.origin.format
    options = _options(stage, request, None)
    link, leases = store_on_workers(
        writer,
        workers,
        pieces_of(reading, request.source, request.more),
        reading.schema if base is None else _schema_to_append(base, reading.schema),
        base,
        codec=request.codec,
        format=told,
        options=options,
        progress=lambda _, size_bytes: progress(size_bytes, None),
    )
    stage.leases += leases
    made = open_dataset(writer, link.digest)
    others = (registry.read(path, told, **options) for path in request.more)
    edges = source_edges(writer, reading, made) if base is None else [edge_of_reading(reading)]
    edges += map(edge_of_reading, others)
    return add_lineage(writer, made, [*edges, *origins(stage.session, request)])


def forget_unfinished(session: WorkspaceSession, paths: Iterable[str]) -> None:
    """Entries are staged: what was stored on the way to them is in them."""
    unfinished = session.here.unfinished()
    left = {path: unfinished[path] for path in unfinished.keys() - set(paths)}
    if left.keys() != unfinished.keys():
        session.here.write_unfinished(left)


def _gone_on(
    session: WorkspaceSession, request: AddRequest, source: str, base: StoredDataset | None
) -> Unfinished | None:
    """What an earlier run of the same `add` had stored, if it is still kept."""
    known = session.here.unfinished().get(request.path)
    if known is None or (known.source, known.base) != (source, _digest(base)):
        return None
    # Without its generation nobody knows which condemnations it may have missed.
    return known if known.generation is not None and known.root in held(session) else None


def _note(session: WorkspaceSession, request: AddRequest, unfinished: Unfinished) -> None:
    """Keep first, then note: what was noted before is kept until then."""
    staging = session.here.staging()
    entries = [staged.entry for staged in staging.entries.values()]
    began = [staging.generation] if entries else []
    began += [one.generation for one in (unfinished,) if one.generation is not None]
    keep_alive(session, entries, min(began, default=0), unfinished.root)
    here = session.here
    here.write_unfinished({**here.unfinished(), request.path: unfinished})


def _new_schema(request: AddRequest, reading: OpenedSource) -> Schema:
    """The columns of a new dataset. Raises InvalidInputError: none can be progressive, as asked."""
    if not request.progressive:
        return reading.schema
    columns = reading.schema.columns
    if not any(isinstance(column.type, Image) for column in columns):
        raise InvalidInputError(
            f"--progressive is about columns of images; {request.place} has none, but "
            f"{', '.join(column.name for column in columns)}"
        )
    return Schema(
        tuple(
            dataclasses.replace(column, type=Image(column.type.codec, request.progressive))
            if isinstance(column.type, Image)
            else column
            for column in columns
        )
    )


def _told_of_bands(dataset: StoredDataset) -> Iterator[str]:
    """How many pictures of its progressive columns are stored as they came."""
    for column in dataset.schema.columns:
        if isinstance(column.type, Image) and column.type.progressive is True:
            in_bands, plain = pictures_in_bands(column_index(dataset, column.name))
            yield (
                f"{column.name}: {counted(in_bands, 'picture')} progressive, {plain:,} as they came"
            )


def _schema_to_append(base: StoredDataset, found: Schema) -> Schema:
    """The columns of `base`, into which what was read is coerced value by value.

    Numbers of classes mean something only with their names, so these must agree.
    """
    columns = []
    for column in base.schema.visible.without_ids().columns:
        read = next((each for each in found.columns if each.name == column.name), column)
        columns.append(read if isinstance(read.type, ClassLabel) else column)
    return Schema(tuple(columns))


def _digest(dataset: StoredDataset | None) -> Digest | None:
    return None if dataset is None else dataset.digest


def _fingerprint(request: AddRequest) -> str:
    """What is read and how: files by size and time, as git does."""
    remote = request.remote
    told = {
        "path": str(request.source.resolve()) if remote is None else remote.url,
        "version": "" if remote is None else remote.version,
        "format": request.format,
        "options": {name: str(value) for name, value in sorted(request.options.items())},
        "on_error": request.on_error,
        "codec": request.codec,
        **({"progressive": request.progressive} if request.progressive else {}),
        "files": sorted(describe_files(request.source).items()) if remote is None else [],
    }
    return content_tag(json.dumps(told, sort_keys=True).encode()).hex()


SHOWN_MISFITS = 5
STAGED_SECONDS = 1.0  # in which datasets are stored that are staged together


def add(session: WorkspaceSession, request: AddRequest, progress: SourceProgress) -> list[Added]:
    """Store what lies at a path, and stage it.

    `progress` receives bytes done so far, and those in all, where that is known.

    Raises:
        ConflictError: the name exists and no mode was given.
        InvalidInputError: the source cannot be used, or has no rows; nothing was staged.
        NotFoundError: there is no such path, or nothing at the URL.
    """
    if request.url is None:
        return _add(session, request, progress)
    check_path(request.path)
    place = remote_place(request.url, session.machine)
    seen = _seen(session, request, place)
    if request.mode is AddMode.SYNC and seen and seen.is_still(place, _options_digest(request)):
        return [Added(request.path, 0, 0, changed=False)]
    remote = fetch_source(place, session.machine, progress, seen)
    with closing(remote.spool), remote.named():
        local = dataclasses.replace(request, source=remote.path, url=None, remote=remote)
        return _add(session, local, progress)


def _seen(session: WorkspaceSession, request: AddRequest, place: RemotePlace) -> SeenObjects | None:
    """What the URL was when the dataset was last synced with it."""
    entry = next_commit(session).entry(request.path) if request.mode in SYNC_MODES else None
    if entry is None or entry.kind is not Kind.DATASET:
        return None
    objects = session.repository.objects
    dataset = open_dataset(objects, entry.digest, session.outside)
    return SeenObjects.of(objects, dataset, place.shown, session.outside)


def _options_digest(request: AddRequest) -> str:
    return options_digest(request.format, request.options, request.on_error)


def _add(session: WorkspaceSession, request: AddRequest, progress: SourceProgress) -> list[Added]:
    if request.space == "files":
        return add_files(session, [request], progress)
    return _stage_next(session, deque([request]), progress)


def add_datasets(
    session: WorkspaceSession, requests: Iterable[AddRequest], progress: SourceProgress
) -> list[Added]:
    """Store what lies at several paths as datasets, and stage those of a second together.

    To stage takes a lease and several syncs, and writes all that is staged. Of who is killed
    datasets are lost that were stored within the last second.

    Raises what `add` raises.
    """
    left, added = deque(requests), list[Added]()
    while left:
        added += _stage_next(session, left, behind(added, progress))
    return added


def _stage_next(
    session: WorkspaceSession, left: deque[AddRequest], progress: SourceProgress
) -> list[Added]:
    """Take requests for datasets, or for one model, store what they ask for, and stage it."""
    began = time.monotonic()
    done: list[tuple[AddRequest, StoredEntry]] = []
    with begin_stage(session) as stage:
        tracked = TrackedPaths(session)
        while left and (not done or time.monotonic() - began < STAGED_SECONDS):
            told = behind([made.added for _, made in done], progress)
            done.append((left[0], _store(stage, left.popleft(), tracked, told)))
    forget_unfinished(session, (one.path for one, made in done if made.added.changed))
    known = ((one, made) for one, made in done if made.added.changed or made.source is not None)
    track(session, [(one, made.source or made.entry.digest) for one, made in known])
    return [made.added for _, made in done]


def _store(
    stage: WorkspaceStage, request: AddRequest, tracked: TrackedPaths, progress: SourceProgress
) -> StoredEntry:
    """Store what a request asks for; it is on the stage where it is new."""
    check_source(request)
    notes: list[str] = []
    if request.remote is None and request.source.is_dir():
        links, notes = links_under(request.source)
        notes += notes_of_links(request.source, links)
    existing = existing_entry(stage, request)
    if request.space == "datasets":
        made = _add_dataset(stage, request, existing, tracked, progress)
    else:
        made = add_model(stage, request, existing, progress)
    if made.added.changed:
        is_dataset = made.entry.kind is Kind.DATASET
        rows = len(open_dataset(stage.objects, made.entry.digest)) if is_dataset else 0
        size_bytes = made.added.bytes
        stage.stage(request.path, made.entry)
        stage.describe(request.path, rows=rows, size_bytes=size_bytes, source=request.place)
    told = dataclasses.replace(made.added, notes=(*made.added.notes, *notes))
    return dataclasses.replace(made, added=told)


def adopt_and_stage(
    session: WorkspaceSession,
    name: str,
    mode: AddMode,
    wish: AdoptionRequest,
    progress: SourceProgress,
) -> Added:
    """Stage a dataset whose rows stay in files; `progress` receives the bytes looked at so far.

    Raises:
        ConflictError: the name exists and no mode was given, or is no dataset.
        InvalidInputError, UnsupportedError: a file cannot be adopted; nothing was staged.
    """
    request = AddRequest(Path(wish.paths[0]), "datasets", name, mode)
    path = check_path(request.path)
    with begin_stage(session) as stage:
        _check_dataset(path, existing_entry(stage, request))
        append = mode is AddMode.APPEND
        made = adopt(stage, path, wish, session.machine, append=append, progress=progress)
        stage.describe(path, rows=made.rows, size_bytes=made.bytes, source=wish.paths[0])
    return Added(path, made.rows, made.bytes, changed=True, notes=made.notes)


def _check_dataset(path: str, existing: Entry | None) -> None:
    if existing is not None and existing.kind is not Kind.DATASET:
        raise ConflictError(f"{path} is a {existing.kind.label}, not a dataset")


def _add_dataset(
    stage: WorkspaceStage,
    request: AddRequest,
    existing: Entry | None,
    tracked: TrackedPaths,
    progress: SourceProgress,
) -> StoredEntry:
    _check_dataset(request.path, existing)
    if request.progressive and existing is not None:
        raise InvalidInputError(
            f"--progressive is for new datasets, {request.path} is there: its columns say "
            "themselves how they are stored"
        )
    session, writer = stage.session, stage.objects
    if (
        existing is not None
        and request.mode is AddMode.SYNC
        and _is_unchanged(session, tracked.at(request), existing)
    ):
        return StoredEntry(existing, Added(request.path, 0, 0, changed=False))
    reading = registry.read(request.source, request.format, **_options(stage, request, existing))
    if request.remote is not None:
        reading = request.remote.described(reading, _options_digest(request))
    if request.mode is AddMode.UPSERT and existing is not None:
        return _upsert(stage, request, reading, progress)
    if request.mode in SYNC_MODES and existing is not None:
        return _sync(stage, request, existing, reading, tracked.at(request), progress)
    appends = request.mode is AddMode.APPEND and existing is not None
    base = open_dataset(writer, existing.digest) if appends and existing else None
    misfits, known_rows = Misfits(request.on_error), 0
    if request.workers is not None:
        link = _store_on_workers(stage, request, request.workers, reading, base, progress)
    else:
        link, known_rows, stage.since = ingest_dataset(
            session, request, reading, writer, base, misfits, progress, stage.since
        )
    made = open_dataset(writer, link.digest)
    if base is not None:
        check_declared_key(made, base)
    if reading.properties and base is None:
        link = set_properties(writer, made, reading.properties)
        made = open_dataset(writer, link.digest)
    rows = len(made) - (len(base) if base else 0)
    if not rows:
        raise InvalidInputError(f"{request.place} holds no rows: there is nothing to add")
    notes = (*reading.notes, *reading.damage.notes, *_account(known_rows, misfits))
    notes += tuple(_told_of_bands(made))
    noted = tuple(misfits.noted)
    told = Added(request.path, rows, reading.bytes, changed=True, notes=notes, misfits=noted)
    return StoredEntry(open_dataset(writer, link.digest).entry, told)


def _options(
    stage: WorkspaceStage, request: AddRequest, existing: Entry | None
) -> dict[str, object]:
    """Those of the format. Who skips rows that do not fit skips damaged records, too.

    Columns that the dataset has as text, or as JSON, are read as that: "007" is no number.
    """
    given = dict(request.options)
    if existing is not None:
        schema = open_dataset(stage.objects, existing.digest).schema.visible
        for name, columns in kept_columns(schema.columns).items():
            if registry.takes_option(request.source, request.format, name):
                given.setdefault(name, columns)
    if request.on_error == "raise" or "damaged" in given:
        return given
    skips = registry.takes_option(request.source, request.format, "damaged")
    return {**given, "damaged": "skip"} if skips else given


def _upsert(
    stage: WorkspaceStage,
    request: AddRequest,
    reading: OpenedSource,
    progress: SourceProgress,
) -> StoredEntry:
    if request.on_error != "raise":
        raise InvalidInputError("--on-error is for rows that are appended; it has no --upsert")
    draft = DatasetDraft(stage, request.path, stage.session.outside)
    before = draft.rows
    watched = dataclasses.replace(reading, batches=_watched(reading, progress))
    draft.upsert(watched, request.key, codec=request.codec)
    rows, notes = draft.rows - before, (*reading.notes, *reading.damage.notes)
    entry = draft.stored.entry
    changed = stage.drop_if_unchanged(request.path)
    return StoredEntry(
        entry, Added(request.path, rows, reading.bytes, changed=changed, notes=notes)
    )


def _watched(reading: OpenedSource, progress: SourceProgress) -> Iterator[InputBatch]:
    """The batches of a source; tells how much of it was read."""
    tell, rows = of_source(reading, progress), 0
    for batch in reading.batches:
        rows += batch_rows(batch)
        yield batch
        tell(rows, 0)


def _sync(
    stage: WorkspaceStage,
    request: AddRequest,
    existing: Entry,
    reading: OpenedSource,
    tracked: tuple[str, Tracked] | None,
    progress: SourceProgress,
) -> StoredEntry:
    """Put on the dataset what changed in the source since it was last seen."""
    misfits = Misfits(request.on_error)
    options = SyncOptions(
        key=request.key,
        mirror=request.mode is not AddMode.SYNC,
        drop_columns=request.mode is AddMode.REPLACE,
        prefer=request.prefer,
        base=None if tracked is None else tracked[1].digest,
        codec=parse_codec(request.codec),
        is_source=tracked is None,
    )
    synced = sync(
        stage,
        request.path,
        reading,
        options,
        outside=stage.session.outside,
        misfits=misfits,
        progress=of_source(reading, progress),
    )
    entry = stage.entry(request.path) or existing
    changed = synced.changed and stage.drop_if_unchanged(request.path)
    notes = (*reading.notes, *reading.damage.notes, *synced.notes, *_account(0, misfits))
    report = synced.report
    told = Added(
        request.path,
        report.inserted,
        reading.bytes,
        changed,
        notes,
        tuple(misfits.noted),
        report.updated,
        report.deleted,
    )
    return StoredEntry(entry, told, synced.source)


def _account(known_rows: int, misfits: Misfits) -> Iterator[str]:
    """What a user should know of how the rows came in."""
    if known_rows:
        yield f"went on behind {counted(known_rows, 'row')} that an earlier run had stored"
    if misfits.summary:
        yield misfits.summary
        yield from (each.reason for each in misfits.noted[:SHOWN_MISFITS])
        if len(misfits.noted) > SHOWN_MISFITS:
            yield "more of them with --json"


def _is_unchanged(
    session: WorkspaceSession, tracked: tuple[str, Tracked] | None, existing: Entry
) -> bool:
    """Whether a tracked path still looks as it was written out."""
    if tracked is None:
        return False
    path, written = tracked
    same = existing.digest == written.digest
    return same and not changed_files(session.here.root, path, written)
