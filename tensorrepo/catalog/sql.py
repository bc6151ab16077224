"""SQL of the SDK: a query over the tables of a repository, its own or one that others wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from tensorrepo.catalog.catalog import catalog_of
from tensorrepo.catalog.search_calls import SearchAnswers
from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import byte_size, check_instance, ref_text, text, wrong
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.purged import refuse_purged_words, telling_purged
from tensorrepo.query.sql.duck import MEMORY, DuckSession, DuckSettings, Params
from tensorrepo.query.sql.pushdown import ROW_ID
from tensorrepo.query.sql.repository_tables import RepositoryTables
from tensorrepo.query.sql.results import Result
from tensorrepo.query.untrusted.sandbox import QueryLimits, query_sandboxed
from tensorrepo.verbs.indexes import candidate_rows


def tables_of(context: Context, ref: str, this: StoredDataset | None = None) -> RepositoryTables:
    """The tables that queries of `context` see; `this` is the dataset that is called ``self``."""
    return RepositoryTables(
        context.core,
        ref,
        context.resolve,
        lambda: catalog_of(context),
        context.outside,
        this,
    )


def sql(
    context: Context,
    query: str,
    *,
    ref: str = "main",
    params: Params = None,
    memory: int | str = MEMORY,
    this: StoredDataset | None = None,
    untrusted: QueryLimits | None = None,
) -> Result:
    """See `Repository.sql`. `this` is the dataset that the query calls ``self``."""
    found = tables_of(context, ref, this)
    text("a query", query)
    ref_text(ref)
    given = checked_params(params)
    if untrusted is not None:
        check_instance("untrusted", untrusted, QueryLimits, "tr.QueryLimits(seconds=..., ...)")
    size_bytes = byte_size("memory", memory, 1)
    with _telling_purged(found, query, given):
        if untrusted is not None:
            return query_sandboxed(found, query, untrusted, given)
        return session_of(context, found, size_bytes).query(query, given)


def session_of(context: Context, tables: RepositoryTables, memory_bytes: int) -> DuckSession:
    """A session for the caller's own queries, which ask indexes: `nearest` and `search` are tables,
    and conditions are looked up.
    """
    tables.by_index = partial(candidate_rows, context)
    session = DuckSession(tables, DuckSettings(memory=f"{memory_bytes}B"))
    session.answers = SearchAnswers(context, tables.ref, session.scanned)
    return session


@contextmanager
def _telling_purged(tables: RepositoryTables, query: str, params: Params) -> Iterator[None]:
    """Say what of a query was purged: ids of rows, and columns of what it reads."""
    objects = tables.core.objects
    if ROW_ID in query:
        given = params.values() if isinstance(params, Mapping) else params or ()
        refuse_purged_words(objects, f"{query} {' '.join(map(str, given))}")
    with telling_purged(objects, (used.path for used in tables.used), [query]):
        yield


def checked_params(params: Params) -> Params:
    """Values for a query, or None: a list of them, or a mapping from names.

    Raises:
        InvalidInputError: it is something else.
    """
    if params is None:
        return None
    if isinstance(params, Mapping):
        return {name: as_plain(value) for name, value in params.items()}
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise wrong("params", "a list of values, or a mapping from names to values", params)
    return [as_plain(value) for value in params]
