"""Views on a stage: which rows of a dataset a query chooses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tensorrepo.catalog.sql import tables_of
from tensorrepo.context import Context
from tensorrepo.datasets.dataset import RowsOfDataset
from tensorrepo.formats.common.arguments import text
from tensorrepo.formats.common.summaries import view_summary
from tensorrepo.formats.dataset.metadata.row_ids import ROW_ID
from tensorrepo.formats.dataset.selecting.select_rows import rows_of_ids
from tensorrepo.formats.views import StoredView, make_view, write_view
from tensorrepo.query.sql.duck import DuckSession, DuckSettings
from tensorrepo.query.sql.repository_tables import RepositoryTables, Used
from tensorrepo.query.sql.results import Result
from tensorrepo.query.untrusted.sandbox import QueryLimits, query_sandboxed
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tensorrepo.verbs.stage import Stage

ID_DIGITS = 16
KEPT_IDS = 1 << 20  # so many of them are not looked at before there are more
REFRESH_LIMITS = QueryLimits(seconds=600.0, memory_bytes=1 << 30, rows=1 << 40, bytes=1 << 40)


def create_view(
    stage: Stage,
    context: Context,
    path: str,
    commit: Digest,
    query: str,
    limits: QueryLimits | None = None,
) -> ObjectLink:
    """Ask for rows of a commit, and stage which they are.

    Args:
        stage: next commit.
        context: repository that is asked.
        path: whole path of the view.
        commit: commit that is asked, where the query names no other.
        query: one SELECT over the tables of the repository, whose column ``row_id`` says which rows
            are meant.
        limits: limits of a query that somebody else may have written, which a process of its own
            answers. None: whoever asks wrote it.

    Raises:
        ConflictError: there is no view yet, and a dataset of its name. SQL calls both by their
            bare names.
        InvalidInputError: it is no single SELECT, or gives no row ids, or ids of no dataset, or of
            several; or it went beyond `limits`.
        PermissionDenied: it asks for files, extensions or settings.
    """
    _check_name(stage, path)
    tables = tables_of(context, commit)
    text("a query", query)
    if limits is not None:
        ids = _ids_of(query_sandboxed(tables, query, limits), tables)
    else:
        session = DuckSession(tables, DuckSettings(external=False))
        try:
            ids = _ids_of(session.select(query), tables)
        finally:
            session.close()
    source = _source(tables.used, ids, commit)
    return _stage(stage, path, make_view(source.stored, ids, query, source.path, source.commit))


def keep_rows(stage: Stage, context: Context, path: str, rows: RowsOfDataset) -> ObjectLink:
    """Stage a view of the rows of a selection, or of another view.

    Raises:
        ConflictError: as for `create_view`.
        InvalidInputError: they are rows of another repository.
    """
    _check_name(stage, path)
    if rows.context.core.id != context.core.id:
        raise InvalidInputError(
            f"these are rows of {rows.whole.path} in another repository, {rows.context.url}: a "
            "view is of a dataset of its own"
        )
    return _stage(stage, path, rows.as_view())


def _check_name(stage: Stage, path: str) -> None:
    name = path.removeprefix("views/")
    if stage.entry(f"datasets/{name}") is not None and stage.entry(path) is None:
        raise ConflictError(
            f"there is a dataset {name!r}, so a query that names {name!r} would not say which is "
            "meant: give the view another name"
        )


def _stage(stage: Stage, path: str, view: StoredView) -> ObjectLink:
    link = write_view(stage.objects, view)
    # Its dataset may be of a commit that no ref leads to.
    summary = view_summary(rows=view.rows, view_bytes=link.bytes, path=view.path)
    stage.stage(path, Entry(Kind.VIEW, link.digest, summary=summary), since=0)
    return link


def _ids_of(result: Result, tables: RepositoryTables) -> NDArray[Any]:
    """The row ids of a result, each at least once."""
    if "row_id" not in result.columns:
        raise InvalidInputError(
            "a view needs to know its rows: expected a column row_id in what its query gives, "
            f"found {', '.join(result.columns)}"
        )
    most = max((each.stored.root.rows for each in tables.used), default=0)
    held, pieces = 0, [np.zeros(0, ROW_ID)]
    for batch in result.batches():
        pieces.append(parse_ids(batch.column("row_id")))
        held += batch.num_rows
        if held > 2 * most + KEPT_IDS:  # a query may give each id as often as it likes
            pieces = [np.unique(np.concatenate(pieces))]
            held = len(pieces[0])
            if held > most:
                raise InvalidInputError(_OF_ONE.format(_places(tables.used) or "nothing"))
    return np.concatenate(pieces)


def _source(used: list[Used], ids: NDArray[Any], commit: Digest) -> Used:
    """The dataset whose rows have all of these ids: as it is in `commit`, where it is there."""
    unique: dict[Digest, Used] = {}
    for each in sorted(used, key=lambda each: each.commit != commit):
        unique.setdefault(each.stored.digest, each)
    if not unique:
        raise InvalidInputError("a view is of rows of a dataset, and the query names none")
    fitting = [each for each in unique.values() if (rows_of_ids(each.stored, ids) >= 0).all()]
    if not fitting:
        raise InvalidInputError(_OF_ONE.format(_places(unique.values())))
    # Versions of a dataset share ids, and the query does not say whose it gave.
    fitting = [each for each in fitting if each.commit == commit] or fitting
    if len(fitting) > 1 and len(ids):
        raise InvalidInputError(
            f"a view is of rows of one dataset: all of {_places(fitting)} have these. Name one of "
            "them in the query"
        )
    return fitting[0]


_OF_ONE = "a view is of rows of one dataset: no one of {} has all of these"


def _places(used: Iterable[Used]) -> str:
    return ", ".join(f"{each.path}@{each.commit:.12}" for each in used)


def parse_ids(texts: pa.Array) -> NDArray[Any]:
    """Row ids as SQL gives them, as ROW_ID ``(n,)``.

    Raises:
        InvalidInputError: one is null, or no row id.
    """
    if texts.null_count or not (pa.types.is_string(texts.type) or len(texts) == 0):
        raise InvalidInputError(f"row_id holds what is no row id: {texts.type}, some of it null")
    ids = np.zeros(len(texts), ROW_ID)
    if not len(texts):
        return ids
    try:
        digits = "".join(pc.utf8_slice_codeunits(texts, 0, ID_DIGITS).to_pylist())
        ids["fragment"] = np.frombuffer(bytes.fromhex(digits), ">u8")
        offsets = pc.utf8_slice_codeunits(texts, ID_DIGITS + 1, 1 << 20)
        ids["offset"] = pc.cast(offsets, pa.uint32()).to_numpy(zero_copy_only=False)
    except ValueError as error:  # Arrow's errors are some of them
        raise InvalidInputError(f"row_id holds what is no row id: {error!s:.200}") from error
    return ids
