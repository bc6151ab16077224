"""Dataset draft: the verbs that change rows and columns of a dataset in a transaction.

Every verb stores what changes at once, in bounded memory, and stages the new version; nothing is
seen by others before the transaction commits.

`append` takes one batch, many batches or single rows. A batch maps columns to many values, a row
maps columns to one value each. Which of them a mapping is, the types of the columns tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Self

import pyarrow as pa

from tensorrepo.context import Context
from tensorrepo.datasets.sql_edit import expression_updates, expression_values, row_selection
from tensorrepo.formats.common.arguments import (
    byte_size,
    check_instance,
    chosen,
    counted,
    encodable,
    flag,
)
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.dataset import evolve
from tensorrepo.formats.dataset.changing.patch import LateValues
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.derive import DerivationReport
from tensorrepo.formats.dataset.evolve import NewValues
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.parts import AppendedParts, RowsPart, append_parts
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits, OnMisfit, parse_on_error
from tensorrepo.formats.dataset.schema.schema import Column, Image, InputBatch, Schema, as_type
from tensorrepo.formats.dataset.schema.types import TypeLike
from tensorrepo.formats.dataset.selecting.select_rows import Where
from tensorrepo.formats.dataset.unique_key import check_declared_key
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.formats.dataset.versions.conflicts import SideName
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.formats.exchange.objects.columns import (
    as_column,
    image_file_of,
    image_files,
    image_groups,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink
from tensorrepo.verbs.exchange import open_source, open_to_sync
from tensorrepo.verbs.on_workers import compact_on_workers
from tensorrepo.verbs.part_values import Part, PartLike, parsed, refuse_unreachable
from tensorrepo.verbs.provenance import edges_from, origin_of_rows
from tensorrepo.verbs.seen_objects import SeenObjects
from tensorrepo.verbs.stage import Stage
from tensorrepo.verbs.sync import Synced, SyncOptions, sync, unread

P = ParamSpec("P")
# What `tensorrepo.read` takes or opened: data frames and Arrow by what they can do, hence `object`.
Executor = Literal["thread", "ray"]
Rows = OpenedSource | InputBatch | Iterable[Any] | str | Path | object


@dataclass(slots=True, repr=False)
class DatasetDraft:
    """A dataset in a transaction. Verbs can be chained: ``draft.delete(...).append(...)``.

    `where` says which rows are meant: an SQL condition (``"label == 'cat' and note is null"``) or
    an expression (``tr.col("label") == 3``); row numbers as in ``ds[...]``; row ids; or key columns
    with their values (``{"name": ["a.png", "b.png"]}``). `misfits` reports what the last `append`
    passed over, `synced` what the last `sync` did, `derived` what a derivation did. `progress`
    receives the rows that a verb has done, and those in all. In `repository` it is looked up what
    texts of ``derived_from`` name.
    `context` opens the repository in workers of a cluster.
    `parts` tells what became of the last `append_parts`; `leases` are closed after the commit.
    """

    stage: Stage
    path: str
    outside: Outside
    misfits: Misfits = field(default_factory=Misfits)
    progress: Callable[[int, int], None] = lambda _done, _total: None
    synced: Synced | None = None
    derived: DerivationReport | None = None
    repository: RepositoryCore | None = None
    context: Context | None = None
    parts: AppendedParts | None = None
    leases: list[str] = field(default_factory=list)

    @property
    def stored(self) -> StoredDataset:
        """The dataset as it is now, to read from."""
        entry = self.stage.entry(self.path)
        assert entry is not None, "a draft is made of an entry"
        return open_dataset(self.stage.objects, entry.digest, self.outside)

    @property
    def schema(self) -> Schema:
        """The columns as they are now."""
        return self.stored.schema.without_ids()

    @property
    def rows(self) -> int:
        return len(self.stored)

    def append(
        self,
        rows: Rows,
        *,
        on_error: OnMisfit = "raise",
        codec: str = DEFAULT_CODEC,
        page_bytes: int | str | None = None,
        derived_from: Any = (),
        how: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add rows behind those that are there. They are stored at once, in bounded memory.

        Args:
            rows: a data frame, an Arrow table or reader, a dict of columns, an iterable of row
                dicts or of batches, a dataset of torch or of Hugging Face, a path, or what
                `tensorrepo.read` opened. Images are bytes, pictures of Pillow, arrays of pixels or
                paths. Pass many small batches as one iterable: each call makes a fragment.
            on_error: fate of rows that do not fit: "raise", "skip" the row, or "null" the value;
                `misfits` then tells of them.
            codec: "auto" tries a sample of every page, and takes zstd where it halves, bit packing
                where it saves a quarter; "zstd", "shuffle" and "bitpack" are kept where they save
                a quarter; "none" keeps pages that can be mapped.
            page_bytes: bytes of a full page, such as "64KiB": the least that is read at once.
                None: 1 MiB, or 256 KiB where rows are under 4 KiB.
            derived_from: a dataset, a model, a stream, ``REF:PATH``, a URL, or several: what the
                rows were made of. What `tensorrepo.read` opened is noted by itself.
            how: JSON that says how, such as ``{"function": "crop"}``.

        Raises:
            InvalidInputError: a row does not fit; names row, column, expected and found. Rows of
                earlier calls stay.
        """
        self.misfits = Misfits(on_error)
        stored = self.stored
        schema = stored.schema.without_ids()
        source = open_source(rows, schema=schema, on_error=parse_on_error(on_error))
        link = write_dataset(
            self.stage.objects,
            schema,
            source.batches,
            base=stored,
            edges=[
                *origin_of_rows(rows, source),
                *edges_from(derived_from, how, repository=self.repository),
            ],
            misfits=self.misfits,
            codec=parse_codec(codec),
            page_bytes=None if page_bytes is None else byte_size("page_bytes", page_bytes),
        )
        return self._stage(link)

    def append_parts(
        self,
        parts: Iterable[PartLike],
        *,
        verify: Literal["sample", "all"] = "sample",
        derived_from: Any = (),
        how: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add rows that workers stored with `tensorrepo.parts.write`, in the order given.

        Each part counts once, however often it was written or is given: a worker that is started
        again writes the same key, and a commit whose outcome was unknown is simply repeated. No row
        is copied. `parts` of this draft tells what became of them.

        Args:
            parts: what `tensorrepo.parts.write` gave, or its JSON.
            verify: besides metadata, which is always proved, pages to decode and compare with what
                is said of them: 128 of all parts together, or all.
            derived_from: as for `append`.
            how: as for `append`.

        Raises:
            CommitExpired: objects of a part were collected: it has to be written again.
            ConflictError: the dataset has rows of another part of the same key.
            CorruptError: a part is not what it says.
            InvalidInputError: a part of another repository, or one whose columns do not fit.
            PermissionDenied: who commits may read only some refs of a service's repository.

        Example:
            ``tx.dataset("photos").append_parts(pool.map(write_one, files))``
        """
        known = [parsed(each, Part) for each in parts]
        if self.repository is not None:
            refuse_unreachable(known, self.repository)
        chosen("verify", verify, ("sample", "all"))
        edges = edges_from(derived_from, how, repository=self.repository)
        rows = [RowsPart(each.key, each.root, each.rows) for each in known]
        digest, self.parts = append_parts(
            self.stage.objects,
            self.stored,
            rows,
            verify=verify,
            edges=edges,
        )
        self.leases += [each.lease for each in known]
        return self._stage_root(digest)

    def delete(self, where: Where) -> Self:
        """Delete rows; those that are gone already are passed over. `compact` frees their bytes.

        Example:
            ``tx.dataset("photos").delete("consent == false")``
        """
        return self._apply(delete_rows, row_selection(self.stored, where))

    def update(
        self, where: Where, values: Mapping[str, Any], *, columns: Iterable[str] | None = None
    ) -> Self:
        """Give rows other values; only what differs is written.

        Args:
            where: which rows.
            values: by column: one value for all rows (None is null), a value for each row in the
                order of `where`, or a function of a `pyarrow.RecordBatch` of some of them. Images
                are what `append` takes, paths as well.
            columns: what functions are given; None: all.

        Raises:
            InvalidInputError: a value does not fit; nothing changed.
            NotFoundError: a row id, number or key that is not there.

        Example:
            ``tx.dataset("photos").update({"name": ["a.png", "b.png"]}, {"label": ["cat", "dog"]})``
        """
        stored = self.stored
        rows = row_selection(stored, where)
        found = {
            name: _changed_images(stored.schema, name, as_column(each))
            for name, each in values.items()
        }
        return self._apply(update_rows, rows, found, columns=columns, progress=self._advance(rows))

    def update_sql(self, values: Mapping[str, str], where: Where | None = None) -> Self:
        """Give rows what SQL expressions over their columns say.

        Args:
            values: an expression for each column that is set. They see the values before.
            where: which rows; None: all.

        Raises:
            InvalidInputError: an expression that is wrong, or gives what does not fit.

        Example:
            ``tx.dataset("fashion").update_sql({"label": "label + 1"}, "label >= 3")``
        """
        rows, columns = expression_updates(self.stored, values, where)
        return self._apply(update_rows, rows, columns, progress=self._advance(rows))

    def upsert(
        self,
        rows: Rows,
        key: str | Sequence[str],
        *,
        codec: str = DEFAULT_CODEC,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Update the rows whose key is there, and append the others.

        Args:
            rows: as for `append`. Columns that they lack stay as they are, and take their default,
                or null, in new rows.
            key: the column, or columns, that tell one row from every other.
            codec: as for `append`.
            progress: receives rows and bytes done so far.

        Raises:
            InvalidInputError: a row that does not fit, or a key that is null or given twice.
        """
        source = open_source(rows, schema=self.schema)
        return self._apply(upsert, key, source.batches, codec=parse_codec(codec), progress=progress)

    def sync(
        self,
        source: OpenedSource | str | Path,
        *,
        key: str | Sequence[str] | None = None,
        mirror: bool = False,
        prefer: SideName | None = None,
        on_error: OnMisfit = "raise",
        codec: str = DEFAULT_CODEC,
    ) -> Self:
        """Put on the dataset what changed in a source since it was last seen.

        Rows are matched and keep their ids; only what differs is stored. `synced` tells what the
        source had changed.

        Args:
            source: a path or URL, or what `tensorrepo.read` opened. Of a URL nothing is read that
                is the version which the last sync saw.
            key: the column, or columns, that tell one row from every other. None: the property
                "key" of the dataset, else what names rows in the source (files of images,
                ``__key__`` of WebDataset), else rows are aligned by what they hold.
            mirror: make the rows those of the source, whatever was changed in the dataset.
            prefer: side whose values are taken for cells that were changed on both: "theirs" is
                the source. None: that is a conflict.
            on_error: as for `append`.
            codec: as for `append`.

        Raises:
            ConflictError: cells that were changed on both sides to different values.
            InvalidInputError: a row that does not fit, or a key that is null or there twice.
        """
        if not isinstance(source, str | Path):
            known = "a path, a URL, or what tensorrepo.read opened"
            check_instance("source", source, OpenedSource, known)
        if prefer is not None:
            chosen("prefer", prefer, ("ours", "theirs"))
        names = (key,) if isinstance(key, str) else tuple(key or ())
        self.misfits = Misfits(on_error)
        if isinstance(source, str | Path):
            opened = open_to_sync(
                self.stage.objects,
                self.stored,
                source,
                on_error=parse_on_error(on_error),
                always=mirror,
            )
            if isinstance(opened, SeenObjects):
                self.synced = unread(self.stage.objects, opened)
                return self
            source = opened
        self.synced = sync(
            self.stage,
            self.path,
            source,
            SyncOptions(names, flag("mirror", mirror), prefer=prefer, codec=parse_codec(codec)),
            outside=self.outside,
            misfits=self.misfits,
            progress=lambda done, _: self.progress(done, source.rows or done),
        )
        return self

    def add_column(
        self,
        name: str,
        type: TypeLike | None = None,  # noqa: A002 - what users call it
        values: NewValues | None = None,
        *,
        sql: str | None = None,
        default: Any = None,
        nullable: bool | None = None,
        columns: Iterable[str] | None = None,
    ) -> Self:
        """Put a column behind those there are.

        Args:
            name: name of the column.
            type: such as ``"float32"`` or ``Embedding("float32", 768)``; with `sql` it
                may be left out: large tensors then have the shape of the first rows.
            values: one for each row: an array, a series, an iterable of arrays, or a function that
                is given some of the rows as a `pyarrow.RecordBatch`. Images are what `append`
                takes, paths as well. None: all rows have the default, or null, and no row is
                written.
            sql: an expression over the columns that gives the values, such as ``"label * 2"``.
            default: what rows have that are given no value, these and later ones.
            nullable: None: only when there are neither values nor a default.
            columns: what a function is given; None: all.

        Raises:
            InvalidInputError: a value does not fit, or there are more or fewer than rows.
            ConflictError: there is a column of that name.

        Example:
            ``draft.add_column("embedding", Embedding("float32", 768), embed, columns=["image"])``
        """
        if nullable is not None:
            flag("nullable", nullable)
        if isinstance(type, str):
            encodable("type", type)
        if sql is not None:
            given = None if type is None else as_type(type)
            type, values = expression_values(self.stored, sql, given)  # noqa: A001
        if type is None:
            raise InvalidInputError(f"column {name!r} needs a type, or sql to take it from")
        if nullable is None:
            nullable = sql is not None or (values is None and default is None)
        column = Column(name, as_type(type), nullable, default=default)
        values = as_column(values)
        if isinstance(column.type, Image) and values is not None:
            values = _new_images(values)
        return self._apply(
            evolve.add_column,
            column,
            values,
            columns=columns,
            codec=DEFAULT_CODEC,
            progress=self._advance(),
        )

    def drop_column(self, name: str) -> Self:
        """Leave a column out. Versions that have it keep it."""
        return self._apply(evolve.drop_column, name)

    def rename_column(self, name: str, new_name: str) -> Self:
        """Call a column something else; no row is written."""
        return self._apply(evolve.rename_column, name, new_name)

    def widen_column(
        self,
        name: str,
        type: TypeLike | None = None,  # noqa: A002 - what users call it
        *,
        nullable: bool | None = None,
    ) -> Self:
        """Let a column hold more: a wider dtype, open dimensions, more classes, nulls.

        No row is written: values are converted when they are read.

        Raises:
            InvalidInputError: the new type does not hold every value of the old one.
        """
        return self._apply(evolve.widen_column, name, type, nullable=nullable)

    def set_properties(self, /, **properties: Any) -> Self:
        """Set notes of the dataset, JSON values by name; None takes one away."""
        return self._apply(evolve.set_properties, properties)

    def compact(
        self,
        target_bytes: int | str = "64MiB",
        *,
        budget_bytes: int | str = "256MiB",
        everything: bool = False,
        executor: Executor = "thread",
    ) -> Self:
        """Write worn fragments anew: small ones, and those with deleted or patched rows.

        Args:
            target_bytes: bytes of a fragment.
            budget_bytes: bound of the memory used.
            everything: write all rows anew, not only what is worn.
            executor: "thread", or "ray": workers of the cluster write, each some rows.
        """
        if chosen("executor", executor, ("thread", "ray")) == "ray":
            if self.context is None:
                raise InvalidInputError("executor='ray' compacts a dataset of a transaction")
            digest, leases = compact_on_workers(
                self.stage.objects,
                self.context,
                self.stored,
                target_bytes=byte_size("target_bytes", target_bytes),
                budget_bytes=byte_size("budget_bytes", budget_bytes),
                everything=flag("everything", everything),
                progress=self._advance(),
            )
            self.leases += leases
            return self._stage_root(digest)
        return self._apply(
            compact_dataset,
            target_bytes=byte_size("target_bytes", target_bytes),
            budget_bytes=byte_size("budget_bytes", budget_bytes),
            everything=flag("everything", everything),
            progress=self._advance(),
        )

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"<dataset {self.path} in a transaction: {counted(self.rows, 'row')}>"

    def _advance(self, chosen: Any = None) -> Callable[[int, int], None]:
        """`progress` as the formats call it: with rows and bytes done, of the rows `chosen`."""
        total = len(chosen) if hasattr(chosen, "__len__") else self.rows
        return lambda done, _size: self.progress(done, total)

    def _apply(
        self,
        verb: Callable[Concatenate[ObjectSink, StoredDataset, P], ObjectLink],
        *given: P.args,
        **options: P.kwargs,
    ) -> Self:
        """Store what a verb of the format makes of the dataset as it is now, and stage it."""
        return self._stage(verb(self.stage.objects, self.stored, *given, **options))

    def _stage(self, link: ObjectLink) -> Self:
        return self._stage_root(link.digest)

    def _stage_root(self, digest: Digest) -> Self:
        made = open_dataset(self.stage.objects, digest, self.outside)
        check_declared_key(made, self.stored)
        self.stage.stage(self.path, made.entry)
        return self


def _changed_images(schema: Schema, name: str, value: Any) -> Any:
    """A value of `update`, with what reads files in place of paths of images."""
    if name not in schema or not isinstance(schema.column(name).type, Image):
        return value
    if callable(value):
        return _images_of(value)
    given = image_files(value)
    if given is None:
        return image_file_of(value)
    return LateValues(len(given), lambda at: [image_file_of(given[each]) for each in at.tolist()])


def _new_images(values: NewValues) -> NewValues:
    """Values of a new column of images, with the bytes of files in place of paths."""
    if callable(values):
        return _images_of(values)
    if isinstance(values, Sequence) or hasattr(values, "__array__"):
        given = image_files(values)
        return values if given is None else image_groups(given)
    return chain.from_iterable(map(image_groups, values))


def _images_of(make: Callable[[pa.RecordBatch], Any]) -> Callable[[pa.RecordBatch], Any]:
    def images(batch: pa.RecordBatch) -> Any:
        found = make(batch)
        given = image_files(found)
        return found if given is None else list(map(image_file_of, given))

    return images
