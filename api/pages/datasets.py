"""Dataset viewer: rows as a table or a gallery, one row, columns with their profiles.

What the first page needs stands in metadata, and in the pages of the rows that it shows. Histograms
and pictures are asked for by the browser when they come into view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from tensorrepo.api.content import profiles
from tensorrepo.api.content.cells import CellFile, mean_bytes, read_cell
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.datasets import DatasetInfo, dataset_info
from tensorrepo.api.content.documents import PICTURE_TYPES
from tensorrepo.api.content.rows import RowPage, RowRequest, chosen_columns, read_rows
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.cells import (
    WHOLE_CHARACTERS,
    ShownCell,
    is_number,
    picture_of,
    shown_cell,
    sound_type,
)
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import FILE_HEADERS, FOREVER, RepositoryPage, disposition
from tensorrepo.api.pages.repository import Ref, ref_link, ref_names, revision_at
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Bytes, ClassLabel, Image
from tensorrepo.formats.images.thumbnails import small_png
from tensorrepo.query.drawing import charts
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError

router: Final = deferred_router(include_in_schema=False)
View = Literal["", "table", "gallery", "columns"]
_ROWS: Final = 50  # of a table
_PICTURES: Final = 60  # of a gallery
_COLUMNS: Final = 40  # of a table
_THUMBNAIL_PIXELS: Final = 192
_SOUND_BYTES: Final = 16 << 20  # of a value that is looked at to see whether it is a sound
_NO_ROWS: Final[dict[str, Any]] = {
    "fault": "", "rows": [], "columns": [], "more_columns": 0, "following": None, "previous": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShownRow:
    """One row of the viewer: its number, its id, and a cell for each column."""

    number: int
    id: str
    cells: list[ShownCell]


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """What of a dataset is looked at, as the query of the URL says."""

    ref: Ref = ""
    view: View = ""
    where: Annotated[str, Query(max_length=10_000)] = ""
    start: Annotated[int, Query(ge=0)] = 0


@router.get("/{repository:repository}/-/datasets/{name:path}")
def dataset(page: RepositoryPageOf, name: str, query: Annotated[ViewQuery, Depends()]) -> Response:
    """A dataset: its rows, or its columns."""
    return _viewer(page, f"datasets/{name}", query)


@router.get("/{repository:repository}/-/views/{name:path}")
def view(page: RepositoryPageOf, name: str, query: Annotated[ViewQuery, Depends()]) -> Response:
    """The rows of a view."""
    return _viewer(page, f"views/{name}", query)


def _viewer(page: RepositoryPage, path: str, query: ViewQuery) -> Response:
    ref, revision = revision_at(page, query.ref)
    content = page.service.at(page.access, revision.digest)
    info, stored = dataset_info(content, path), content.dataset(path)
    kind = query.view or ("gallery" if _has_pictures(stored) else "table")
    values = {
        "path": path,
        "ref": ref,
        "info": info,
        "view": kind,
        "where": query.where,
        "start": query.start,
        "is_number": is_number,
        **(
            {**_NO_ROWS, **_of_columns(stored, info)}
            if kind == "columns"
            else _rows_of(page, content, path, replace(query, view=kind))
        ),
    }
    if page.is_fragment:
        return page.render("_rows.html", **values)
    return page.render(
        "dataset.html",
        refs=ref_names(page.access),
        refs_to=ref_link(page, path, view=query.view),
        views=views_of(page, path, ref, where=query.where),
        **values,
    )


@router.get("/{repository:repository}/-/row/{number}/{path:path}")
def row(page: RepositoryPageOf, number: int, path: str, ref: Ref = "") -> Response:
    """One row, every value as large as fits."""
    ref, revision = revision_at(page, ref)
    content = page.service.at(page.access, revision.digest)
    stored = content.dataset(path)
    columns = list(stored.schema.visible.columns)
    found = read_rows(content, path, RowRequest(take=(number,)), link=_no_link)
    (shown,) = _shown(page, content, columns, found, most=WHOLE_CHARACTERS)
    return page.render(
        "row.html",
        path=path,
        ref=ref,
        row=shown,
        columns=columns,
        total=stored.rows,
        previous=number - 1 if number else None,
        following=number + 1 if number + 1 < stored.rows else None,
    )


@router.get("/{repository:repository}/-/profile/{path:path}")
def column_profile(
    page: RepositoryPageOf, path: str, column: Annotated[str, Query(max_length=4096)], ref: Ref = ""
) -> Response:
    """What values of a column are like, of a bounded read: a part of the page."""
    _, revision = revision_at(page, ref)
    content = page.service.at(page.access, revision.digest)
    try:
        found = profiles.column_profile(content, path, column)
    except Error as error:
        return page.render("_error.html", title="It cannot be read", detail=str(error))
    answer = page.render(
        "_profile.html", profile=found, drawing=_drawing(found), rows=content.dataset(path).rows
    )
    if ref == revision.digest:
        answer.headers["Cache-Control"] = FOREVER
    return answer


@router.get("/{repository:repository}/-/cell/{path:path}")
def cell(
    page: RepositoryPageOf,
    path: str,
    column: Annotated[str, Query(max_length=4096)],
    row: Annotated[int, Query(ge=0)],
    ref: Ref = "",
    small: bool = False,
) -> Response:
    """One value as a file, which no browser runs; `small` asks for a picture of it."""
    _, revision = revision_at(page, ref)
    file = read_cell(page.service.at(page.access, revision.digest), path, column, row)
    if small:
        file = _small(file)
    sound = sound_type(file.data[:16]) if file.media_type == "application/octet-stream" else None
    media_type = sound or file.media_type
    inline = sound is not None or media_type in PICTURE_TYPES
    return Response(
        file.data,
        media_type=media_type if inline else "application/octet-stream",
        headers={
            **FILE_HEADERS,
            "Content-Disposition": disposition(file.name, inline=inline),
            "Cache-Control": FOREVER if ref == revision.digest else "no-store",
        },
    )


def views_of(
    page: RepositoryPage, path: str, ref: str, *, where: str = ""
) -> list[tuple[str, str, str]]:
    """Ways to look at a dataset or a view: key, words, and where they are."""
    _, revision = revision_at(page, ref)
    stored = page.service.at(page.access, revision.digest).dataset(path)
    some = [("table", "Rows"), ("columns", "Columns")]
    if _has_pictures(stored):
        some.insert(0, ("gallery", "Pictures"))
    shown = [(key, words, page.here(path, ref=ref, view=key, where=where)) for key, words in some]
    return [*shown, ("sql", "SQL", page.here("sql", dataset=path, ref=ref))]


def _has_pictures(stored: StoredDataset) -> bool:
    return any(isinstance(one.type, Image) for one in stored.schema.visible.columns)


def _small(file: CellFile) -> CellFile:
    """A picture of a value, no larger than a page shows it."""
    drawn = picture_of(file)
    if drawn is not None:
        return drawn
    if file.media_type.startswith("image/"):
        data = small_png(file.data, _THUMBNAIL_PIXELS)
        if data is not None:
            return CellFile(data, "image/png", f"{file.name}.png")
    return file


def _rows_of(
    page: RepositoryPage, content: CommitContent, path: str, query: ViewQuery
) -> dict[str, Any]:
    """Rows of the table or the gallery, and where those before and behind begin."""
    stored = content.dataset(path)
    gallery = query.view == "gallery"
    every = [one.name for one in stored.schema.visible.columns]
    names = _gallery_columns(stored) if gallery else every[:_COLUMNS]
    request = RowRequest(
        start=query.start,
        limit=_PICTURES if gallery else _ROWS,
        columns=tuple(names),
        where=query.where,
    )
    try:
        ask = partial(page.service.queries.rows_where, content)
        found = read_rows(content, path, request, link=_no_link, ask=ask)
    except InvalidInputError as error:
        return {**_NO_ROWS, "fault": str(error)}
    columns = chosen_columns(stored, names)
    before = max(query.start - request.limit, 0) if query.start and not query.where else None
    return {
        "fault": "",
        "rows": _shown(page, content, columns, found),
        "columns": columns,
        "more_columns": 0 if gallery else max(len(every) - _COLUMNS, 0),
        "following": found.next,
        "previous": before,
    }


def _of_columns(stored: StoredDataset, info: DatasetInfo) -> dict[str, Any]:
    """Of which columns bounds are told, and of which some rows are shown as pictures."""
    columns = stored.schema.visible.columns
    without_nulls = {one.name for one in info.columns if not one.nulls}
    some = sorted({0, stored.rows // 2, stored.rows - 1}) if stored.rows else []
    return {
        "ranged": {one.name for one in columns if is_number(one)},
        "pictured": {
            one.name: some
            for one in columns
            if isinstance(one.type, Image) and one.name in without_nulls and some
        },
    }


def _gallery_columns(stored: StoredDataset) -> list[str]:
    """The pictures, and what is said below each: its class, or a text."""
    columns = stored.schema.visible.columns
    pictures = [one.name for one in columns if isinstance(one.type, Image)][:1]
    words = [one.name for one in columns if isinstance(one.type, ClassLabel)][:1]
    return [*pictures, *words]


def _shown(
    page: RepositoryPage,
    content: CommitContent,
    columns: Sequence[Column],
    found: RowPage,
    **options: int,
) -> list[ShownRow]:
    sounds = _sound_columns(content, found, columns)

    def link(column: str, row: int, **query: object) -> str:
        return page.here("cell", found.path, column=column, row=str(row), ref=found.commit, **query)

    return [
        ShownRow(
            one.row,
            one.id,
            [
                shown_cell(
                    column,
                    one.values[column.name],
                    partial(link, column.name, one.row),
                    is_sound=column.name in sounds,
                    **options,
                )
                for column in columns
            ],
        )
        for one in found.items
    ]


def _sound_columns(content: CommitContent, found: RowPage, columns: Sequence[Column]) -> set[str]:
    """Columns of bytes whose first value shown is a sound."""
    stored = content.dataset(found.path)
    sounds = set()
    for column in columns:
        if not isinstance(column.type, Bytes) or mean_bytes(stored, column) > _SOUND_BYTES:
            continue
        rows = [one.row for one in found.items if one.values[column.name] is not None]
        if rows and sound_type(read_cell(content, found.path, column.name, rows[0]).data[:16]):
            sounds.add(column.name)
    return sounds


def _drawing(found: profiles.ProfileOfColumn) -> str:
    if found.counts:
        return charts.histogram(found.counts, found.edges)
    return charts.bars(found.classes) if found.classes else ""


def _no_link(column: object, row: int) -> str:
    """A link of the API that pages replace by their own."""
    return f"{column}/{row}"
