"""Page that compares two versions: rows of a dataset side by side, layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.differences import compare_commits, compare_rows
from tensorrepo.api.pages.cells import ShownCell, shown_cell
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.models import compare_models
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.repo.errors import InvalidInputError

router: Final = APIRouter(include_in_schema=False)
Version = Annotated[str, Query(max_length=1024)]
_ROWS: Final = 20  # of a page
_COLUMNS: Final = 40


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row that differs: its columns with a cell before and a cell after; None: not there."""

    change: str
    id: str
    old_row: int | None
    new_row: int | None
    cells: list[tuple[str, ShownCell | None, ShownCell | None]]


@router.get("/{repository:repository}/-/compare")
def compare(
    page: RepositoryPageOf,
    path: Annotated[str, Query(max_length=4096)],
    old: Version,
    new: Version,
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """What became of `path` between two commits."""
    if path.startswith("models/"):
        return compare_models(page, path, old, new)
    if not path.startswith("datasets/"):
        raise InvalidInputError(f"datasets and models are compared on a page, not {path!r:.120}")
    before, after = page.service.at(page.access, old), page.service.at(page.access, new)
    values: dict[str, Any] = {"path": path, "old": before.commit, "new": after.commit}
    if not page.is_fragment:
        return page.render("compare_rows.html", **values)
    told = compare_commits(before, after, path, limit=1)
    if not told.changes:
        return page.render("_compare_rows.html", told=None, found=None, rows=[], **values)
    found = compare_rows(before, after, path, start=start, limit=_ROWS)
    rows = [_pair(page, before, after, path, one) for one in found.rows]
    return page.render("_compare_rows.html", told=told.changes[0], found=found, rows=rows, **values)


def _pair(
    page: RepositoryPage,
    before: CommitContent,
    after: CommitContent,
    path: str,
    row: Mapping[str, Any],
) -> RowPair:
    sides = []
    for content, values, number in (
        (before, row["old"], row["old_row"]),
        (after, row["new"], row["new_row"]),
    ):
        columns = _columns(content, path) if number is not None else {}
        sides.append(
            {
                name: _cell(page, content, path, columns[name], value, number)
                for name, value in (values or {}).items()
                if name in columns
            }
        )
    names = list(dict.fromkeys([*sides[0], *sides[1]]))[:_COLUMNS]
    return RowPair(
        row["change"],
        row["row_id"],
        row["old_row"],
        row["new_row"],
        [(name, sides[0].get(name), sides[1].get(name)) for name in names],
    )


def _columns(content: CommitContent, path: str) -> dict[str, Column]:
    return {column.name: column for column in content.dataset(path).schema.visible.columns}


def _cell(
    page: RepositoryPage, content: CommitContent, path: str, column: Column, value: Any, row: int
) -> ShownCell:
    link = partial(page.here, "cell", path, column=column.name, row=str(row), ref=content.commit)
    return shown_cell(column, value, link)
