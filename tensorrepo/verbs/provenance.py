"""Provenance edges of rows: foreign files, datasets, models and streams that they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from tensorrepo.datasets.dataset import Dataset, View
from tensorrepo.datasets.selection import Selection
from tensorrepo.datasets.stream import Stream
from tensorrepo.formats.common.arguments import mapping, several
from tensorrepo.formats.common.provenance import (
    DERIVED_FROM,
    TRAINED_ON,
    ProvenanceEdge,
    imported_from,
    public_place,
)
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.models.model import Model
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import resolve, split_path
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.json_rules import check_json

HASHED_BYTES: Final = 64 << 20  # a fraction of a second beside reading its rows


def origin_of_rows(given: object, source: OpenedSource) -> Iterator[ProvenanceEdge]:
    """The edge of what users gave: a path, what `tensorrepo.read` opened, or a dataset.

    An object in memory came from nowhere that could be named.
    """
    if isinstance(given, OpenedSource | str | Path):
        yield edge_of_reading(source)
    elif isinstance(given, Dataset):
        yield from edges_from(given, repository=None)


def edge_of_reading(reading: OpenedSource) -> ProvenanceEdge:
    """Where the rows of a foreign file or folder come from."""
    origin = reading.origin
    told = {"format": origin.format, "files": origin.files, "bytes": origin.bytes}
    return imported_from(origin.path, **told, **file_facts(Path(origin.path)))


def file_facts(path: Path) -> dict[str, Any]:
    """Which version of a file of this machine is meant: its SHA-256, where reading it again is
    cheap, else when it was modified; nothing of what is no single file.
    """
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > HASHED_BYTES:
            return {"modified_ns": path.stat().st_mtime_ns}
        with path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError:  # gone meanwhile, or never a file: its rows are stored, whatever it was
        return {}


def edges_from(
    given: Any,
    how: Mapping[str, Any] | None = None,
    *,
    repository: RepositoryCore | None,
    of_model: bool = False,
) -> list[ProvenanceEdge]:
    """Edges to what ``derived_from=`` of any call names: one thing, or several.

    Args:
        given: datasets, models, streams; texts, see `named_edge`; or edges.
        how: JSON that says how.
        repository: repository in which ``REF:PATH`` is looked up; None: only URLs are taken.
        of_model: what has the edges is a model, which is ``trained-on`` datasets and streams.

    Raises:
        InvalidInputError: nothing of these; or `how` is no JSON.
    """
    details = dict(mapping("how", how, "JSON values")) if how is not None else {}
    check_json(details, "how")
    handles = several(given, Dataset, Model, Stream, ProvenanceEdge)
    of_rows = TRAINED_ON if of_model else DERIVED_FROM
    return [edge for handle in handles for edge in _edges(handle, of_rows, details, repository)]


def named_edge(repository: RepositoryCore | None, name: str, relation: str = "") -> ProvenanceEdge:
    """The edge to what a text names: ``REF:datasets/NAME``, ``REF:models/NAME``, or a URL.

    Args:
        repository: repository in which it is looked up.
        name: the text.
        relation: relation of the edge.

    Raises:
        InvalidInputError: neither a path of a commit nor a URL.
        NotFoundError: no such commit or path.
    """
    if "://" in name:
        return ProvenanceEdge(relation, public_place(name), "")
    ref, path = split_path(name)
    if path is None or repository is None:
        raise _no_origin(repr(name))
    revision = resolve(repository, ref)
    entry = repository.entry(revision.commit.tree, path)
    if entry is None:
        raise NotFoundError(f"no {path} in commit {revision.digest:.12} ({ref})")
    return ProvenanceEdge(relation, path, entry.digest, revision.digest)


def _edges(
    handle: Any, of_rows: str, details: dict[str, Any], repository: RepositoryCore | None
) -> Iterator[ProvenanceEdge]:
    if isinstance(handle, ProvenanceEdge):
        yield handle
    elif isinstance(handle, Selection) or (isinstance(handle, View) and of_rows == TRAINED_ON):
        whole = handle.whole
        yield ProvenanceEdge(of_rows, whole.path, whole.digest, whole.commit, details | handle.told)
    elif isinstance(handle, Dataset | Model):
        yield ProvenanceEdge(
            relation_to(handle.path, of_rows), handle.path, handle.digest, handle.commit, details
        )
    elif isinstance(handle, Stream):
        for dataset, place in handle.sources():
            position = place() | details
            yield ProvenanceEdge(of_rows, dataset.path, dataset.digest, dataset.commit, position)
    elif isinstance(handle, str):
        edge = named_edge(repository, handle)
        yield structs.replace(edge, relation=relation_to(edge.path, of_rows), details=details)
    else:
        raise _no_origin(type(handle).__name__)


def _no_origin(found: str) -> InvalidInputError:
    return InvalidInputError(
        "derived_from takes datasets, models, streams, REF:datasets/NAME, REF:models/NAME and "
        f"URLs, got {found:.200}"
    )


def relation_to(path: str, of_rows: str) -> str:
    """The relation to an origin at `path`; `of_rows` is that to datasets and views."""
    return of_rows if path.startswith(("datasets/", "views/")) else DERIVED_FROM
