"""Provenance edges of rows: foreign files, datasets, models and streams that they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tensorrepo.datasets.dataset import Dataset
from tensorrepo.datasets.stream import Stream
from tensorrepo.formats.common.arguments import mapping, several
from tensorrepo.formats.common.json import check_json
from tensorrepo.formats.common.provenance import (
    DERIVED_FROM,
    TRAINED_ON,
    ProvenanceEdge,
    imported_from,
)
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.models.model import Model
from tensorrepo.repo.errors import InvalidInputError

HASHED_BYTES: Final = 64 << 20  # a fraction of a second beside reading its rows


def origin_of_rows(given: object, source: OpenedSource) -> Iterator[ProvenanceEdge]:
    """The edge of what users gave: a path, what `tensorrepo.read` opened, or a dataset.

    An object in memory came from nowhere that could be named.
    """
    if isinstance(given, OpenedSource | str | Path):
        yield edge_of_reading(source)
    elif isinstance(given, Dataset):
        yield from edges_from(given, None)


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


def edges_from(given: Any, how: Mapping[str, Any] | None) -> list[ProvenanceEdge]:
    """``derived-from`` edges to what users named: one handle, or several.

    Raises:
        InvalidInputError: no handle of a dataset, model or stream; or `how` is no JSON.
    """
    details = dict(mapping("how", how, "JSON values")) if how is not None else {}
    check_json(details, "how")
    handles = given if isinstance(given, (list, tuple)) else [given]
    return [edge for handle in handles for edge in _edges(handle, DERIVED_FROM, details)]


def training_edges(trained_on: Any) -> list[ProvenanceEdge]:
    """Edges of a model to what it was trained on: datasets, streams of them, or a model before."""
    handles = several(trained_on, Dataset, Model, Stream)
    return [edge for handle in handles for edge in _edges(handle, TRAINED_ON, {})]


def _edges(handle: Any, relation: str, details: dict[str, Any]) -> Iterator[ProvenanceEdge]:
    if isinstance(handle, ProvenanceEdge) and relation == DERIVED_FROM:
        yield handle
    elif isinstance(handle, Dataset | Model):
        word = DERIVED_FROM if isinstance(handle, Model) else relation
        yield ProvenanceEdge(word, handle.path, handle.digest, handle.commit, details)
    elif isinstance(handle, Stream):
        for dataset, place in handle.sources():
            position = place() | details
            yield ProvenanceEdge(relation, dataset.path, dataset.digest, dataset.commit, position)
    else:
        taken = {
            DERIVED_FROM: "derived_from takes datasets, models and streams of them",
            TRAINED_ON: "trained_on takes datasets and streams",
        }
        raise InvalidInputError(f"{taken[relation]}, got {type(handle).__name__}")
