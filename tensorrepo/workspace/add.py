"""How does a file or a folder become a staged entry?

Reads what lies at a path, stores it as a dataset, a model or plain files, and stages the name.
Nothing is staged, and nothing of a workspace changes, before all of it is stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.codecs.choice import parse_codec
from tensorrepo.formats.dataset.columns.lenient import Misfits
from tensorrepo.formats.dataset.evolve import set_properties
from tensorrepo.formats.dataset.read import Dataset, column_index, open_dataset
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.lineage import ADAPTER_OF, imported_from
from tensorrepo.formats.model.combine.adapternames import declare
from tensorrepo.formats.wording import counted
from tensorrepo.origins import file_facts
from tensorrepo.repo.attempt import entry_digests, tree_of
from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tensorrepo.repo.workspace import Tracked, changed_files, describe_files
from tensorrepo.repo.writer import ObjectWriter
from tensorrepo.verbs.adopt import Wish, adopt
from tensorrepo.verbs.models import save
from tensorrepo.workspace.add_files import add_files
from tensorrepo.workspace.ingest import forget_unfinished, ingest_dataset
from tensorrepo.workspace.models import find_model
from tensorrepo.workspace.request import Added, Mode, Request, existing_entry
from tensorrepo.workspace.session import entry_at
from tensorrepo.workspace.stage import WorkspaceStage, begin_stage
from tensorrepo.workspace.staging import held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.formats.exchange.base import Reading
    from tensorrepo.formats.lineage import Edge
    from tensorrepo.formats.model.report import WriteReport
    from tensorrepo.formats.model.source import ModelSource
    from tensorrepo.workspace.session import Session

SHOWN_MISFITS = 5


def add(session: Session, request: Request, progress: Callable[[int], None]) -> list[Added]:
    """Store what lies at a path, and stage it.

    Args:
        session: the workspace and its repository.
        request: what, and as what.
        progress: told the bytes done so far.

    Raises:
        ConflictError: the name exists and no mode was given.
        InvalidInputError: the source cannot be used, or has no rows; nothing was staged.
        NotFoundError: there is no such path.
    """
    source = request.source
    if not source.exists():
        raise NotFoundError(f"there is no {source} to add")
    check_path(request.path)
    with begin_stage(session) as stage:
        if request.space == "files":
            return add_files(stage, request)
        existing = existing_entry(stage, request)
        adder = _add_dataset if request.space == "datasets" else _add_model
        entry, added = adder(stage, request, existing, progress)
        if added.changed:
            is_dataset = entry.kind is Kind.DATASET
            rows = len(open_dataset(stage.objects, entry.digest)) if is_dataset else 0
            stage.stage(request.path, entry)
            stage.describe(request.path, rows=rows, size_bytes=added.bytes, source=str(source))
    if added.changed:
        forget_unfinished(session, request.path)
        _track(session, request, entry)
    return [added]


def adopt_and_stage(
    session: Session, name: str, mode: Mode, wish: Wish, progress: Callable[[int], None]
) -> Added:
    """Stage a dataset whose rows stay in files.

    Args:
        session: the workspace and its repository.
        name: of the dataset.
        mode: what to do if it exists: APPEND or REPLACE; NEW refuses.
        wish: which files.
        progress: told the bytes looked at so far.

    Raises:
        ConflictError: the name exists and no mode was given, or is no dataset.
        InvalidInputError, UnsupportedError: a file cannot be adopted; nothing was staged.
    """
    request = Request(Path(wish.paths[0]), "datasets", name, mode)
    path = check_path(request.path)
    with begin_stage(session) as stage:
        _check_dataset(path, existing_entry(stage, request))
        append = mode is Mode.APPEND
        made = adopt(stage, path, wish, session.machine, append=append, progress=progress)
        stage.describe(path, rows=made.rows, size_bytes=made.bytes, source=wish.paths[0])
    return Added(path, made.rows, made.bytes, changed=True, notes=made.notes)


def _check_dataset(path: str, existing: Entry | None) -> None:
    if existing is not None and existing.kind is not Kind.DATASET:
        raise ConflictError(f"{path} is a {existing.kind.label}, not a dataset")


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


def _add_dataset(
    stage: WorkspaceStage,
    request: Request,
    existing: Entry | None,
    progress: Callable[[int], None],
) -> tuple[Entry, Added]:
    """The entry, and what the user is told of it."""
    _check_dataset(request.path, existing)
    session, writer = stage.session, stage.objects
    if existing is not None and request.mode is Mode.SYNC and _is_unchanged(session, request):
        return existing, Added(request.path, 0, 0, changed=False)
    reading = registry.read(request.source, request.format, **_options(request))
    if request.mode is Mode.UPSERT and existing is not None:
        return _upsert(request, existing, reading, writer, progress)
    appends = request.mode is Mode.APPEND and existing is not None
    base = open_dataset(writer, existing.digest) if appends and existing else None
    misfits = Misfits(request.on_error)
    link, known_rows, stage.since = ingest_dataset(
        session, request, reading, writer, base, misfits, progress, stage.since
    )
    made = open_dataset(writer, link.digest)
    if reading.properties and base is None:
        link = set_properties(writer, made, reading.properties)
        made = open_dataset(writer, link.digest)
    rows = len(made) - (len(base) if base else 0)
    if not rows:
        raise InvalidInputError(f"{request.source} holds no rows: there is nothing to add")
    notes = (*reading.notes, *reading.damage.notes, *_account(known_rows, misfits))
    if existing and not base and same_content(open_dataset(writer, existing.digest), made):
        return existing, Added(request.path, 0, reading.bytes, changed=False, notes=notes)
    noted = tuple(misfits.noted)
    told = Added(request.path, rows, reading.bytes, changed=True, notes=notes, misfits=noted)
    return Entry(Kind.DATASET, link.digest), told


def _options(request: Request) -> dict[str, object]:
    """Those of the format. Who skips rows that do not fit skips damaged records, too."""
    given = dict(request.options)
    if request.on_error == "raise" or "damaged" in given:
        return given
    skips = registry.takes_option(request.source, request.format, "damaged")
    return {**given, "damaged": "skip"} if skips else given


def _upsert(
    request: Request,
    existing: Entry,
    reading: Reading,
    writer: ObjectWriter,
    progress: Callable[[int], None],
) -> tuple[Entry, Added]:
    """Update the rows whose key is there, and append the others."""
    if request.on_error != "raise":
        raise InvalidInputError("--on-error is for rows that are appended; it has no --upsert")
    base = open_dataset(writer, existing.digest)
    link = upsert(
        writer,
        base,
        request.key,
        reading.batches,
        codec=parse_codec(request.codec),
        progress=lambda _, done: progress(done),
    )
    rows = len(open_dataset(writer, link.digest)) - len(base)
    notes = (*reading.notes, *reading.damage.notes)
    changed = link.digest != existing.digest
    return Entry(Kind.DATASET, link.digest), Added(
        request.path, rows, reading.bytes, changed=changed, notes=notes
    )


def _account(known_rows: int, misfits: Misfits) -> Iterator[str]:
    """What a user should know of how the rows came in."""
    if known_rows:
        yield f"went on behind {known_rows:,} rows that an earlier run had stored"
    if misfits.summary:
        yield misfits.summary
        yield from (each.reason for each in misfits.noted[:SHOWN_MISFITS])
        if len(misfits.noted) > SHOWN_MISFITS:
            yield "more of them with --json"


def same_content(old: Dataset, new: Dataset) -> bool:
    """Whether two datasets have the same columns and, page by page, the same bytes."""
    if old.root.deleted or new.root.deleted:
        return False
    if old.schema.without_ids() != new.schema.without_ids():
        return False
    for name in new.schema.names:
        before, after = column_index(old, name), column_index(new, name)
        if not (before.is_plain and after.is_plain):
            return False
        if not np.array_equal(before.first_row, after.first_row):
            return False
        if not np.array_equal(before.tags, after.tags):
            return False
    return True


def _add_model(
    stage: WorkspaceStage,
    request: Request,
    existing: Entry | None,
    progress: Callable[[int], None],
) -> tuple[Entry, Added]:
    session = stage.session
    if request.options:
        raise InvalidInputError(f"models take no options, got {', '.join(request.options)}")
    source = read_model(request.source, request.format)
    if not (source.tensors or source.files):
        raise InvalidInputError(f"{request.source} holds no tensors: there is nothing to add")
    written = save(
        stage,
        request.path,
        source,
        base=_base_model(session, request.base),
        known=known_models(session, stage.objects, existing),
        lineage=_lineage(session, request, source),
        progress=lambda _, done: progress(done),
    )
    changed = stage.drop_if_unchanged(request.path)
    notes = (*source.notes, *(_told(written.report) if changed else ()))
    return written.entry, Added(request.path, 0, source.tensor_bytes, changed, notes)


def _lineage(session: Session, request: Request, source: ModelSource) -> tuple[Edge, ...]:
    """From which file it comes; of which committed model an adapter is, and what it changes."""
    facts = file_facts(request.source)
    read = imported_from(str(request.source), format=request.format, sha256=facts.get("sha256"))
    if request.adapter_of is None:
        return (read,)
    base = find_model(session, request.adapter_of)
    adapter = declare(base.model, source, request.adapter_scale)
    return (base.edge(ADAPTER_OF, **adapter.to_json()), read)


def _told(report: WriteReport) -> Iterator[str]:
    """How a model was stored, for who added it."""
    yield report.summary
    for used in report.bases:
        far = "" if used.bits is None else f", {used.bits:.1f} of 16 bits away"
        tensors = counted(used.tensors, "tensor")
        yield f"{tensors} against model {used.digest:.12} ({used.why}{far})"
    yield from report.notes


def _base_model(session: Session, base: str | None) -> Entry | None:
    """The model that a user named as the base, staged or committed."""
    if base is None:
        return None
    name = base if base.startswith("models/") else f"models/{base}"
    staged = session.here.staging().entries.get(name)
    found = (staged.entry if staged is not None else None) or session.find(base)[2]
    if found.kind is not Kind.MODEL:
        raise InvalidInputError(f"--base {base} is a {found.kind.label}, not a model")
    return found


def known_models(
    session: Session, objects: ObjectWriter, existing: Entry | None
) -> tuple[Entry, ...]:
    """Models that are staged or in the commit to build on, the one that is replaced first."""
    tree = tree_of(objects, session.base())
    committed = [entry for _, entry in session.repository.entries(tree, "models/")]
    models = dict.fromkeys(
        one for one in (*_staged(session), *committed) if one.storage is not None
    )
    replaced = None if existing is None else existing.digest
    return tuple(sorted(models, key=lambda one: one.digest != replaced))


def _staged(session: Session) -> list[Entry]:
    """What is staged and held by the lease, which is a root as a commit is.

    So what it consists of is there now, and the commit's fence looks at all of it.
    """
    entries = [staged.entry for staged in session.here.staging().entries.values()]
    kept = held(session)
    return [
        session.repository.current(entry)
        for entry in entries
        if entry is not None and kept.issuperset(entry_digests(entry))
    ]


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
