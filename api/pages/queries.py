"""Page of SQL over a repository: a box, and a page of what it answers."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.cells import CELL_CHARACTERS
from tensorrepo.api.pages.datasets import views_of
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.pages.repository import (
    Ref,
    entry_lines,
    nothing_yet,
    ref_link,
    ref_names,
    revision_at,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.tables import bounded_text

router: Final = deferred_router(include_in_schema=False)
_ROWS: Final = 100  # of a page
_TABLES: Final = 30  # that are offered
_NUMERIC: Final = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {"halffloat", "float", "double"}
)
_WRONG: Final = (InvalidInputError, NotFoundError, PermissionDenied)  # told beside the box


@router.get("/{repository:repository}/-/sql")
def sql(
    page: RepositoryPageOf,
    ref: Ref = "",
    dataset: Annotated[str, Query(max_length=4096)] = "",
    query: Annotated[str, Query(max_length=16_000)] = "",
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """The box, with the rows of a query where there is one; it is in the URL, to be passed on."""
    if (empty := nothing_yet(page, "entries")) is not None:
        return empty
    ref, revision = revision_at(page, ref)
    values: dict[str, Any] = {"answer": None, "fault": ""}
    if query.strip():
        content = page.service.at(page.access, revision.digest)
        try:
            values["answer"] = page.service.queries.page(content, query, start=start, limit=_ROWS)
        except _WRONG as error:
            values["fault"] = str(error)
    return page.render(
        "_sql.html" if page.is_fragment else "sql.html",
        refs=ref_names(page.access),
        refs_to=ref_link(page, "sql", dataset=dataset, query=query),
        ref=ref,
        dataset=dataset,
        query=query,
        suggested=f'SELECT * FROM "{dataset}" LIMIT 20' if dataset else "",  # noqa: S608  shown
        start=start,
        shown=_shown,
        numeric=_NUMERIC,
        tables=_tables(page, revision.commit.tree) if not page.is_fragment else [],
        views=views_of(page, dataset, revision.digest) if dataset else [],
        **values,
    )


def _tables(page: RepositoryPage, tree: bytes) -> list[str]:
    """Some of what a query may name."""
    lines = entry_lines(page.access, tree)
    return list(islice((one.path for one in lines if one.kind in {"dataset", "view"}), _TABLES))


def _shown(value: Any) -> str:
    """A value of a result in a cell."""
    if isinstance(value, float):
        return f"{value:.6g}"
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return bounded_text(words, CELL_CHARACTERS)
