"""Ray Data: datasets read and written by the workers of a cluster. Needs the extra ``ray``.

    ray.data.read_datasource(tensorrepo.ray.Source(repo.dataset("photos")))
    dataset.write_datasink(tensorrepo.ray.Sink(repo, "main", "thumbnails"))

A source hands out ranges of pages of one commit. Columns that are selected and predicates that are
filtered by are pushed down to it by Ray. A sink has each write task store a part (`parts.write`),
and one process commit all of them: a task that Ray runs again counts once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask, WriteResult

from tensorrepo import parts
from tensorrepo.context import Context
from tensorrepo.datasets.dataset import Dataset
from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.arguments import check_instance, text
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import TypeLike
from tensorrepo.formats.dataset.selecting.row_ranges import ReadPiece, plan_pieces, read_piece
from tensorrepo.repo.changes.transaction import LandedCommit
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repository import Repository
from tensorrepo.transaction import schema_of

__all__ = ["Sink", "Source"]
_BLOCK_BYTES: Final = 64 << 20
_SOME_PIECES: Final = 200  # where Ray does not say how many


class Source(Datasource):  # type: ignore[misc]  # Ray is not typed
    """Rows of a dataset, a view or a selection, to be read by tasks of Ray.

    The commit is the handle's: it never changes while tasks read it. Blocks are Arrow tables, in
    the form of ``ds.to_arrow()``. Ray keeps the order of rows where it is told to
    (``DataContext.get_current().execution_options.preserve_order``).
    """

    def __init__(self, dataset: Dataset) -> None:
        """`dataset` is what `Repository.dataset` gives, a view, or a selection of either."""
        super().__init__()
        check_instance("dataset", dataset, Dataset, "repo.dataset(name)")
        self._dataset = dataset
        self._projection_map: dict[str, str] | None = None

    def get_name(self) -> str:
        return f"Tensorrepo({self._dataset.name})"

    def supports_projection_pushdown(self) -> bool:
        return True

    def supports_predicate_pushdown(self) -> bool:
        return True

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of the columns that are read, decoded, from metadata."""
        stored = self._dataset.whole.stored
        wanted = {stored.schema.column(name).id for name in self._columns}
        known = (each for each in stored.root.statistics if each.id in wanted)
        raw_bytes = sum(max(each.raw_bytes, each.stored_bytes) for each in known)
        rows = len(self._dataset) if not self._dataset.is_every_row else stored.rows
        return int(raw_bytes * rows / max(1, stored.root.rows))

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ARG002  Ray's signature
    ) -> list[Any]:
        """One task for each range of pages, in the order of the rows."""
        whole, columns, where = self._dataset.whole, self._columns, self._where
        rows = None if self._dataset.is_every_row else self._dataset.physical_rows()
        count = parallelism if parallelism > 0 else _SOME_PIECES
        read_names = columns or whole.stored.schema.names[:1]  # of a count rows are wanted alone
        schema = whole.stored.schema.select(read_names).to_arrow() if columns else pa.schema([])
        tasks = []
        for piece in plan_pieces(whole.stored, read_names, count, where):
            mine = None if rows is None else _within(rows, piece)
            if mine is not None and not len(mine):
                continue
            known = piece.rows if mine is None else len(mine)
            size = int(piece.raw_bytes * known / max(1, piece.rows))
            metadata = BlockMetadata(
                num_rows=None if where is not None else known,
                size_bytes=None if where is not None else size,
                input_files=None,
                exec_stats=None,
            )
            place = (whole.context, whole.digest)
            read = partial(_read, *place, tuple(columns), tuple(read_names), piece, where, mine)
            tasks.append(ReadTask(read, metadata, schema, per_task_row_limit))
        return tasks

    @property
    def _columns(self) -> list[str]:
        chosen = self.get_projection_map()
        return self._dataset.columns if chosen is None else list(chosen)

    @property
    def _where(self) -> pc.Expression | None:
        told = self.get_current_predicate()
        return None if told is None else told.to_pyarrow()


def _within(rows: Ints, piece: ReadPiece) -> Ints:
    places = [np.arange(*rows.searchsorted(bounds)) for bounds in piece.ranges]
    return rows[np.concatenate(places)]


def _read(
    context: Context,
    digest: Digest,
    columns: tuple[str, ...],
    read_names: tuple[str, ...],
    piece: ReadPiece,
    where: pc.Expression | None,
    rows: Ints | None,
) -> Iterator[pa.Table]:
    """Blocks of a piece with some of the columns that are read, in a worker."""
    stored = _opened(context, digest)
    for batch in read_piece(stored, read_names, piece, where, rows=rows, max_bytes=_BLOCK_BYTES):
        yield pa.Table.from_batches([batch]).select(columns)


@lru_cache(maxsize=8)
def _opened(context: Context, digest: Digest) -> StoredDataset:
    """A dataset in a worker, with what tasks before read of its metadata."""
    return open_dataset(context.core.objects, digest, context.outside)


class Sink(Datasink):  # type: ignore[misc]  # Ray is not typed
    """Rows of a Ray dataset, appended to a dataset of a branch in one commit.

    Write tasks store parts; when all have ended one commit appends them in the order of the tasks,
    which is that of the blocks where Ray keeps it. A task that Ray runs again counts once, and
    nothing is committed when one fails for good. `commit` is the commit that was made.
    """

    def __init__(
        self,
        repository: Repository,
        branch: str,
        name: str,
        *,
        columns: Mapping[str, TypeLike | Column] | Schema | None = None,
        message: str = "",
        key: str | None = None,
        derived_from: Any = (),
        codec: str = DEFAULT_CODEC,
        keep: str = parts.KEEP,
    ) -> None:
        """Nothing is done before Ray begins to write.

        Args:
            repository: where; its author makes the commit.
            branch: what to commit to.
            name: dataset to append to; it is made where there is none.
            columns: columns of a dataset that is made; None: as the types of its rows say.
            message: message of the commit; None: says what was written.
            key: name of this write for good: a second one with the same key, of the same rows in
                the same blocks, changes nothing. None: a random one.
            derived_from: what the rows were made of: a dataset, ``REF:PATH``, a URL, or several.
            codec: as for `DatasetDraft.append`.
            keep: span of time for which parts are kept when the commit is never made.
        """
        check_instance("repository", repository, Repository, "tensorrepo.open(url)")
        self._repository = repository
        self._branch, self._name = text("branch", branch), text("name", name)
        self._schema = None if columns is None else schema_of(columns)
        self._message = message or f"Write {name} by Ray"
        self._key = secrets.token_hex(8) if key is None else text("key", key)
        self._origins, self._codec, self._keep = derived_from, codec, keep
        self._base: Digest | None = None
        self.commit: LandedCommit | None = None

    def get_name(self) -> str:
        return f"Tensorrepo({self._name})"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:  # noqa: ARG002  Ray's
        """Look whether there is the dataset: then rows have its columns.

        `schema` is not looked at: of fused operators it is that of the first one's rows.
        """
        try:
            self._base = self._repository.dataset(self._name, ref=self._branch).commit
        except NotFoundError:
            self._base = None

    def write(self, blocks: Iterable[Block], ctx: Any) -> str | None:
        """Store the blocks of one task as a part; gives its JSON. Runs in a worker."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        first = next((table for table in tables if table.num_rows), None)
        if first is None:
            return None
        part = parts.write(
            self._repository,
            _chained(first, tables),
            **self._columns_of_part(first.schema),
            key=f"{self._key}/{ctx.task_idx:08d}",
            codec=self._codec,
            keep=self._keep,
        )
        return part.to_json()

    def on_write_complete(self, write_result: WriteResult[str | None]) -> None:
        """Commit all parts."""
        told = [parts.Part.from_json(each) for each in write_result.write_returns if each]
        told.sort(key=lambda part: part.key)
        with self._repository.transaction(self._branch, self._message) as tx:
            if self._base is not None:
                tx.dataset(self._name).append_parts(told, derived_from=self._origins)
            elif told or self._schema is not None:
                columns = self._schema or self._schema_of(told[0])
                draft = tx.create_dataset(self._name, columns=columns)
                draft.append_parts(told, derived_from=self._origins)
        self.commit = tx.commit

    def _columns_of_part(self, found: pa.Schema) -> dict[str, Any]:
        if self._base is not None:
            return {"dataset": self._name, "ref": self._base}
        return {"schema": self._schema or Schema.from_arrow(found).without_ids()}

    def _schema_of(self, part: parts.Part) -> Schema:
        stored = open_dataset(self._repository.context.core.objects, part.root)
        return stored.schema.visible.without_ids()


def _chained(first: pa.Table, rest: Iterable[pa.Table]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        for table in rest:
            yield from table.cast(first.schema).to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())
