"""Profiles of columns: what their values are like, made once of a bounded read, and kept on disk.

A profile is of the content of a column: its pages, what replaces values in them, and which rows are
deleted. So versions of a dataset that share a column share its profile.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec
from blake3 import blake3
from pydantic import Field

from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.formats.dataset.read import StoredDataset, column_index, live_rows
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import type_to_json
from tensorrepo.query.drawing.profiles import profile

FORM: Final = b"tensorrepo profile 2"  # another one where profiles tell something else


class ProfileOfColumn(Record):
    """What the values of a column are like, of so many rows."""

    column: str
    rows: int = Field(description="Rows that were looked at: of a large column some of them.")
    nulls: int
    counts: list[int] = Field(description="Values in each bin of a histogram; may be empty.")
    edges: list[float] = Field(description="Bounds of the bins, or the whole number of each.")
    classes: list[tuple[str, int]] = Field(description="The most frequent first.")
    more_classes: int
    examples: list[str]


def column_profile(content: CommitContent, path: str, column: str) -> ProfileOfColumn:
    """The profile of one column of a dataset or a view.

    Raises:
        NotFoundError: no such entry or column.
    """
    dataset = content.dataset(path)
    known = dataset.schema.column(column)
    name = column_digest(dataset, known)
    kept = content.memory.profiles.get(name) if content.memory.profiles else None
    if kept is not None:
        return ProfileOfColumn.model_validate({**json.loads(bytes(kept)), "column": column})
    # Once for all who ask meanwhile, in this process.
    made: ProfileOfColumn = content.memory.making.get_or_load(
        name, lambda: (_profile(dataset, known), 1)
    )
    if content.memory.profiles:
        content.memory.profiles.put(name, (made.model_dump_json().encode(),))
    return made.model_copy(update={"column": column})


def column_digest(dataset: StoredDataset, column: Column) -> str:
    """Name of the content of a column: equal where pages, patches and deleted rows are."""
    index, dead = column_index(dataset, column.name), live_rows(dataset).dead
    kind = msgspec.json.encode(type_to_json(column.type), order="sorted")
    parts = [FORM, kind, index.tags.tobytes(), index.first_row.tobytes(), dead.tobytes()]
    if index.patches is not None:
        parts += [index.patches.rows.tobytes(), index.patches.source.tobytes()]
        parts.append(index.patches.pages.tags.tobytes())
    if index.default is not None:
        parts.append(json.dumps(column.default, sort_keys=True, default=str).encode())
    hasher = blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little")).update(part)
    return hasher.hexdigest()


def _profile(dataset: StoredDataset, column: Column) -> ProfileOfColumn:
    made = profile(dataset, column)
    return ProfileOfColumn(
        column=column.name,
        rows=made.rows,
        nulls=made.nulls,
        counts=list(made.counts),
        edges=list(made.edges),
        classes=list(made.classes),
        more_classes=made.more_classes,
        examples=list(made.examples),
    )
