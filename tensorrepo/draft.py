"""A dataset in a transaction, as the SDK shows it: what can be done with its rows and columns.

Every verb stores what changes at once, in bounded memory, and stages the new version; nothing is
seen by others before the transaction commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorrepo import connect
from tensorrepo.formats.arguments import encodable, flag
from tensorrepo.formats.codecs.choice import parse_codec
from tensorrepo.formats.dataset import evolve
from tensorrepo.formats.dataset.columns.lenient import Misfits
from tensorrepo.formats.dataset.columns.schema import Column, as_type
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.origins import edges_from, origin_of_rows
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tensorrepo.rows import batches_of
from tensorrepo.sqledit import expression_updates, expression_values, row_selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from tensorrepo.formats.dataset.columns.lenient import OnError
    from tensorrepo.formats.dataset.columns.schema import InputBatch, Schema
    from tensorrepo.formats.dataset.columns.types import TypeLike
    from tensorrepo.formats.dataset.editing.where import Where
    from tensorrepo.formats.dataset.elsewhere.outside import Outside
    from tensorrepo.formats.dataset.evolve import NewValues
    from tensorrepo.formats.dataset.read import Dataset as StoredDataset
    from tensorrepo.formats.exchange.base import Reading
    from tensorrepo.repo.objects import Link
    from tensorrepo.repo.transaction import Transaction as CoreTransaction


@dataclass(slots=True, repr=False)
class DatasetDraft:
    """A dataset in a transaction. Verbs can be chained: ``draft.delete(...).append(...)``.

    `where` says which rows are meant: an SQL condition (``"label == 'cat' and note is null"``) or
    an expression (``tr.col("label") == 3``); row numbers as in ``ds[...]``; row ids; or key columns
    with their values (``{"name": ["a.png", "b.png"]}``). `misfits` reports what the last `append`
    passed over.
    """

    core: CoreTransaction
    path: str
    outside: Outside
    misfits: Misfits = field(default_factory=Misfits)

    @property
    def stored(self) -> StoredDataset:
        """The dataset as it is now, to read from."""
        entry = self.core.entry(self.path)
        assert entry is not None, "a draft is made of an entry"
        return open_dataset(self.core.objects, entry.digest, self.outside)

    @property
    def schema(self) -> Schema:
        """The columns as they are now."""
        return self.stored.schema.without_ids()

    @property
    def rows(self) -> int:
        return len(self.stored)

    def append(
        self,
        rows: Reading | InputBatch | Iterable[InputBatch],
        *,
        on_error: OnError = "raise",
        codec: str = "none",
        page_bytes: int | str | None = None,
        derived_from: Any = (),
        how: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add rows behind those that are there. They are stored at once, in bounded memory.

        Args:
            rows: a dict of columns, an iterable of row dicts or of batches, an Arrow table or
                batch, a dataset of torch or of Hugging Face, or what `tensorrepo.read` opened.
                Pass many small batches as one iterable: each call makes a fragment of its own.
            on_error: of rows that do not fit: "raise", "skip" the row, or set the value "null";
                `misfits` then tells of them.
            codec: "none", "zstd", "shuffle", "bitpack", or "auto", which tries a sample of every
                page; kept where it saves a quarter.
            page_bytes: of a full page, such as "64KiB": the least that is read at once. None: 1
                MiB, or 256 KiB where rows are under 4 KiB.
            derived_from: a dataset, a model, a stream, or several: what the rows were made of. What
                `tensorrepo.read` opened is noted by itself.
            how: JSON that says how, such as ``{"function": "crop"}``.

        Raises:
            InvalidInputError: a row does not fit; names row, column, expected and found. Rows of
                earlier calls stay.
        """
        self.misfits = Misfits(on_error)
        stored = self.stored
        schema = stored.schema.without_ids()
        link = write_dataset(
            self.core.objects,
            schema,
            batches_of(schema, rows),
            base=stored,
            edges=[*origin_of_rows(rows), *edges_from(derived_from, how)],
            misfits=self.misfits,
            codec=parse_codec(codec),
            page_bytes=None if page_bytes is None else connect.parse_size(page_bytes),
        )
        return self._stage(link)

    def delete(self, where: Where) -> Self:
        """Delete rows; those that are gone already are passed over. `compact` frees their bytes.

        Example:
            ``tx.dataset("photos").delete("consent == false")``
        """
        stored = self.stored
        return self._stage(delete_rows(self.core.objects, stored, row_selection(stored, where)))

    def update(
        self, where: Where, values: Mapping[str, Any], *, columns: Iterable[str] | None = None
    ) -> Self:
        """Give rows other values; only what differs is written.

        Args:
            where: which rows.
            values: by column: one value for all rows (None is null), a value for each row in the
                order of `where`, or a function of a `pyarrow.RecordBatch` of some of them.
            columns: what functions are given; None: all.

        Raises:
            InvalidInputError: a value does not fit; nothing changed.
            NotFoundError: a row id, number or key that is not there.

        Example:
            ``tx.dataset("photos").update({"name": ["a.png", "b.png"]}, {"label": ["cat", "dog"]})``
        """
        stored = self.stored
        rows = row_selection(stored, where)
        return self._stage(update_rows(self.core.objects, stored, rows, values, columns=columns))

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
        stored = self.stored
        rows, columns = expression_updates(stored, values, where)
        return self._stage(update_rows(self.core.objects, stored, rows, columns))

    def upsert(
        self, rows: Reading | InputBatch | Iterable[InputBatch], key: str | Sequence[str]
    ) -> Self:
        """Update the rows whose key is there, and append the others.

        Args:
            rows: as for `append`. Columns that they lack stay as they are, and take their default,
                or null, in new rows.
            key: the column, or columns, that tell one row from every other.

        Raises:
            InvalidInputError: a row that does not fit, or a key that is null or given twice.
        """
        batches = batches_of(self.schema, rows)
        return self._stage(upsert(self.core.objects, self.stored, key, batches))

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
            name: of the column.
            type: such as ``"float32"`` or ``Embedding("float32", 768)``; with `sql` it
                may be left out: large tensors then have the shape of the first rows.
            values: one for each row: an array, an iterable of arrays, or a function that is given
                some of the rows as a `pyarrow.RecordBatch`. None: all rows have the default, or
                null, and no row is written.
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
        return self._stage(
            evolve.add_column(self.core.objects, self.stored, column, values, columns=columns)
        )

    def drop_column(self, name: str) -> Self:
        """Leave a column out. Versions that have it keep it."""
        return self._stage(evolve.drop_column(self.core.objects, self.stored, name))

    def rename_column(self, name: str, new_name: str) -> Self:
        """Call a column something else; no row is written."""
        return self._stage(evolve.rename_column(self.core.objects, self.stored, name, new_name))

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
        return self._stage(
            evolve.widen_column(self.core.objects, self.stored, name, type, nullable=nullable)
        )

    def set_properties(self, **properties: Any) -> Self:
        """Set notes of the dataset, JSON values by name; None takes one away."""
        return self._stage(evolve.set_properties(self.core.objects, self.stored, properties))

    def compact(
        self, target_bytes: int | str = "64MiB", *, budget_bytes: int | str = "256MiB"
    ) -> Self:
        """Write worn fragments anew: small ones, and those with deleted or patched rows.

        Args:
            target_bytes: of a fragment.
            budget_bytes: bound of the memory used.
        """
        return self._stage(
            compact_dataset(
                self.core.objects,
                self.stored,
                target_bytes=connect.parse_size(target_bytes),
                budget_bytes=connect.parse_size(budget_bytes),
            )
        )

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"<dataset {self.path} in a transaction: {self.rows:,} rows>"

    def _stage(self, link: Link) -> Self:
        self.core.stage(self.path, Entry(Kind.DATASET, link.digest))
        return self
