"""Datasets and views: schema, counts and statistics, all of which their metadata says at once."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.formats.dataset.diff import column_facts
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ClassLabel, type_to_json
from tensorrepo.repo.objects.envelope import Kind

MOST_CLASSES = 1000  # whose names an answer lists


class ColumnInfo(Record):
    """One column, and what the metadata says of its values."""

    name: str
    type: str = Field(description="In words: `float32[28, 28]`, `text or null`.")
    form: Any = Field(description="The type as JSON, as the schema stores it.")
    nullable: bool
    classes: list[str] | None = Field(
        default=None, description="Names of the classes, where these are at most 1,000."
    )
    nulls: int = Field(description="Nulls, those of deleted rows counted too.")
    min: Any = Field(default=None, description="Bound of all values; null where none is known.")
    max: Any = Field(default=None, description="Bound of all values; null where none is known.")
    stored_bytes: int
    raw_bytes: int = Field(description="Bytes of the values, decoded.")


class DatasetInfo(Record):
    """A dataset or a view at one commit."""

    commit: str
    path: str = Field(examples=["datasets/digits"])
    kind: str = Field(description="dataset or view.")
    digest: str = Field(description="Digest of the dataset's version, of a view that of the view.")
    rows: int
    deleted: int = Field(description="Rows that are stored and deleted, or not in the view.")
    stored_bytes: int
    columns: tuple[ColumnInfo, ...]
    properties: dict[str, Any] = Field(description="What was set with the dataset.")
    query: str | None = Field(default=None, description="Of a view: the SQL that chose its rows.")
    of: str | None = Field(default=None, description="Of a view: path of the dataset.")
    of_commit: str | None = Field(default=None, description="Of a view: commit that was asked.")


def dataset_info(content: CommitContent, path: str) -> DatasetInfo:
    """What the metadata of a dataset or a view says; no page is read.

    Raises:
        NotFoundError: there is no such entry.
        InvalidInputError: it has no rows.
    """
    dataset = content.dataset(path)
    entry = content.entry(path)
    view = content.view(path) if entry.kind is Kind.VIEW else None
    return DatasetInfo(
        commit=content.commit,
        path=path,
        kind=entry.kind.noun,
        digest=entry.digest,
        rows=dataset.rows,
        deleted=dataset.root.deleted,
        stored_bytes=dataset.stored_bytes,
        columns=column_infos(dataset),
        properties=value_json(dict(dataset.properties)),
        query=None if view is None else view.sql,
        of=None if view is None else view.path,
        of_commit=None if view is None else view.commit,
    )


def column_infos(dataset: StoredDataset) -> tuple[ColumnInfo, ...]:
    """The columns that a user gave."""
    facts = column_facts(dataset)
    raw_bytes = {each.id: each.raw_bytes for each in dataset.root.statistics}
    return tuple(
        ColumnInfo(
            name=column.name,
            type=column.type_text,
            form=type_to_json(column.type),
            nullable=column.nullable,
            classes=_classes(column),
            nulls=facts[column.name].nulls,
            min=value_json(facts[column.name].min),
            max=value_json(facts[column.name].max),
            stored_bytes=facts[column.name].stored_bytes,
            raw_bytes=raw_bytes[column.id],
        )
        for column in dataset.schema.visible.columns
    )


def _classes(column: Column) -> list[str] | None:
    if not isinstance(column.type, ClassLabel) or len(column.type.names) > MOST_CLASSES:
        return None
    return list(column.type.names)
