"""Adding of models: stored against a base or the most similar models, with their lineage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import (
    ADAPTER_OF,
    FINE_TUNED_FROM,
    ProvenanceEdge,
    imported_from,
)
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.model.merging.adapters import declare
from tensorrepo.formats.model.merging.new_model import ModelRef
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import WriteReport
from tensorrepo.repo.changes.transaction import entry_digests
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.verbs.exchange import SourceProgress
from tensorrepo.verbs.models import known_models, save
from tensorrepo.verbs.provenance import file_facts
from tensorrepo.workspace.add_request import Added, AddRequest, StoredEntry, origins
from tensorrepo.workspace.change import find_model
from tensorrepo.workspace.session import NextCommit, WorkspaceSession
from tensorrepo.workspace.staged_lease import held
from tensorrepo.workspace.staging import WorkspaceStage


def add_model(
    stage: WorkspaceStage,
    request: AddRequest,
    existing: Entry | None,  # noqa: ARG001  every adder is given it
    progress: SourceProgress,
) -> StoredEntry:
    session = stage.session
    if request.options:
        raise InvalidInputError(f"models take no options, got {', '.join(request.options)}")
    source = read_model(request.source, request.format)
    if not (source.tensors or source.files):
        raise InvalidInputError(f"{request.place} holds no tensors: there is nothing to add")
    base, size_bytes = _base_model(session, request.base), source.tensor_bytes
    written = save(
        stage,
        request.path,
        source,
        base=None if base is None else base.model.entry,
        known=known_models(
            session.repository,
            stage.before.tree,
            _staged(stage.before, held(session)),
            request.path,
        ),
        lineage=_lineage(session, request, source, base),
        progress=lambda _, done: progress(done, size_bytes),
    )
    changed = stage.drop_if_unchanged(request.path)
    told = _told(stage.before, written.report, base) if changed else ()
    notes = (*source.notes, *told)
    return StoredEntry(written.entry, Added(request.path, 0, size_bytes, changed, notes))


def _lineage(
    session: WorkspaceSession, request: AddRequest, source: ModelSource, base: ModelRef | None
) -> tuple[ProvenanceEdge, ...]:
    """From which file it comes; from which stored model, or to which of them it is an adapter."""
    facts = file_facts(request.source)
    read = imported_from(request.place, format=request.format, sha256=facts.get("sha256"))
    if request.adapter_of is not None:
        under = find_model(session, request.adapter_of)
        adapter = declare(under.model, source, request.adapter_scale)
        return (under.edge(ADAPTER_OF, **adapter.to_json()), *origins(session, request), read)
    tuned = () if base is None else (base.edge(FINE_TUNED_FROM),)
    return (*tuned, *origins(session, request), read)


def _told(before: NextCommit, report: WriteReport, base: ModelRef | None) -> Iterator[str]:
    """How a model was stored, for who added it; a base that was found is no more than a hint."""
    yield report.summary
    for used in report.bases:
        name = _name_of(before, used.digest)
        how = f"{counted(used.tensors, 'tensor')} stored as differences from {name}"
        if used.why != "similar" or base is not None:
            yield how
            continue
        yield f"{how}, the most similar model. If it came from there, say so: --base {name}"
    yield from report.notes


def _name_of(before: NextCommit, digest: Digest) -> str:
    """The path of a model that is staged or at HEAD, else its digest."""
    staged = ((path, each.entry) for path, each in before.staged.items())
    entries = chain(staged, before.repository.entries(before.tree, "models/"))
    paths = (path for path, each in entries if each is not None and each.digest == digest)
    return next(paths, f"model {digest:.12}")


def _base_model(session: WorkspaceSession, base: str | None) -> ModelRef | None:
    """The model that a user named as the base, staged or committed."""
    if base is None:
        return None
    name = base if base.startswith("models/") else f"models/{base}"
    staged = session.here.staging().entries.get(name)
    is_staged = staged is not None and staged.entry is not None
    return find_model(session, name if is_staged else base, staged=is_staged)


def _staged(before: NextCommit, kept: set[Digest]) -> list[Entry]:
    """What is staged and `kept` by the lease, which is a root as a commit is.

    So what it consists of is there now, and the commit's fence looks at all of it.
    """
    return [
        before.repository.current(entry)
        for entry in (staged.entry for staged in before.staged.values())
        if entry is not None and kept.issuperset(entry_digests(entry))
    ]
