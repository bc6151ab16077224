"""Datasets and views: schema, statistics, rows as JSON and as Arrow, cells and pictures.

The same routes are below `datasets/` and `views/`: a view has the rows that its query chose.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal
from urllib.parse import quote, urlencode

import xxhash
from fastapi import Path, Query, Request, Response

from tensorrepo.api.content.arrow import ArrowRequest, read_arrow
from tensorrepo.api.content.cells import MOST_SIDE_PIXELS, CellLink, read_cell, read_image
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.datasets import DatasetInfo, dataset_info
from tensorrepo.api.content.profiles import ProfileOfColumn, column_profile
from tensorrepo.api.content.rows import MOST_ROWS, RowPage, RowRequest, read_rows
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import ServiceOf
from tensorrepo.api.routes.conditional import PRIVATE, answer_json, matches
from tensorrepo.api.routes.downloads import ARROW_STREAM, SAFE, answer_arrow, answer_bytes
from tensorrepo.api.routes.trees import ContentOf
from tensorrepo.formats.dataset.schema.cells import has_pictures
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-", tags=["datasets"]
)
MAX_ROW: Final = (1 << 53) - 1
_FORM: Final = "1"  # of what is made of cells; another one where their bytes are made otherwise
Space = Annotated[
    Literal["datasets", "views"], Path(description="What has the rows: a dataset, or a view.")
]
Name = Annotated[str, Path(description="Its path below `datasets/` or `views/`.")]
ColumnName = Annotated[
    str, Query(max_length=255, description="Name of a column.", examples=["label"])
]
Columns = Annotated[
    list[str], Query(max_length=1000, description="Columns, in this order; none: all.")
]
Where = Annotated[
    str, Query(max_length=16 << 10, description="SQL condition of rows.", examples=["label = 3"])
]
Row = Annotated[int, Query(ge=0, le=MAX_ROW, description="Number of a row, from 0.", examples=[7])]
Take = Annotated[
    str,
    Query(max_length=32 << 10, pattern=r"^[0-9,]*$", description="Numbers of rows: `7,3,12`."),
]
Resize = Annotated[
    int | None,
    Query(ge=1, le=MOST_SIDE_PIXELS, description="Fit pictures into a square of so many pixels."),
]
_PICTURES: Final = {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
_STREAM: Final = {"content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}


@router.get("/{space:rows}/{path:entry}", summary="A dataset or a view", response_model=DatasetInfo)
def get_dataset(request: Request, content: ContentOf, space: Space, path: Name) -> Response:
    """Schema, counts, and per column nulls and bounds: of its metadata alone, at once."""
    return answer_json(request, dataset_info(content, f"{space}/{path}"))


@router.get(
    "/{space:rows}/{path:entry}/-/profile",
    summary="What values of a column are like",
    response_model=ProfileOfColumn,
)
def get_profile(
    request: Request, content: ContentOf, space: Space, path: Name, column: ColumnName
) -> Response:
    """Histogram, frequent values and examples, of a bounded read; made once and kept."""
    return answer_json(request, column_profile(content, f"{space}/{path}", column))


@router.get("/{space:rows}/{path:entry}/-/rows", summary="Rows as JSON", response_model=RowPage)
def get_rows(
    request: Request,
    service: ServiceOf,
    content: ContentOf,
    space: Space,
    path: Name,
    column: Columns = [],  # noqa: B006  FastAPI copies it
    where: Where = "",
    start: Row = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    take: Take = "",
) -> Response:
    """Pages go on at `next`. Pictures and large values are objects with an `href`."""
    asked = RowRequest(start, limit, tuple(column), where, _numbers(take))
    link = _cell_links(request, content, space, path)
    ask = partial(service.queries.rows_where, content)
    return answer_json(request, read_rows(content, f"{space}/{path}", asked, link=link, ask=ask))


@router.get(
    "/{space:rows}/{path:entry}/-/arrow",
    summary="Rows as an Arrow stream",
    response_class=Response,
    responses={200: _STREAM},
)
def get_arrow(
    service: ServiceOf,
    content: ContentOf,
    space: Space,
    path: Name,
    column: Columns = [],  # noqa: B006
    where: Where = "",
    start: Row = 0,
    stop: Annotated[int | None, Query(ge=0, le=MAX_ROW)] = None,
    take: Take = "",
    resize: Resize = None,
) -> Response:
    """Of some columns, where a condition holds, pictures made smaller: what the caller needs."""
    asked = ArrowRequest(tuple(column), where, start, stop, _numbers(take), resize)
    ask = partial(service.queries.rows_where, content)
    return answer_arrow(read_arrow(content, f"{space}/{path}", asked, ask=ask).stream())


@router.get(
    "/{space:rows}/{path:entry}/-/cell",
    summary="One value as a file",
    response_class=Response,
    responses={200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}},
)
def get_cell(
    request: Request, content: ContentOf, space: Space, path: Name, column: ColumnName, row: Row
) -> Response:
    """An image as it is stored, text, bytes, a tensor as `.npy`, all else as JSON."""
    etag = _cell_etag(content, f"{space}/{path}", column, row, "cell")
    if (known := _known(request, etag)) is not None:
        return known
    file = read_cell(content, f"{space}/{path}", column, row)
    return answer_bytes(request, file.data, etag=etag, name=file.name, media_type=file.media_type)


@router.get(
    "/{space:rows}/{path:entry}/-/image",
    summary="One picture",
    response_class=Response,
    responses={200: _PICTURES},
)
def get_image(
    request: Request,
    content: ContentOf,
    space: Space,
    path: Name,
    column: ColumnName,
    row: Row,
    resize: Resize = None,
) -> Response:
    """As it is stored, or as a PNG that fits a square of `resize` pixels."""
    etag = _cell_etag(content, f"{space}/{path}", column, row, f"image {resize}")
    if (known := _known(request, etag)) is not None:
        return known
    file = read_image(content, f"{space}/{path}", column, row, resize=resize)
    return answer_bytes(
        request, file.data, etag=etag, name=file.name, media_type=file.media_type, inline=True
    )


def _cell_etag(content: CommitContent, path: str, column: str, row: int, form: str) -> str:
    """Names the bytes of one cell in one form, without reading it."""
    entry = content.of_kind(path, Kind.DATASET, Kind.VIEW)
    column_id = content.dataset(path).schema.column(column).id
    purges = len(content.access.view.state.purges)
    told = f"{_FORM} {form} {entry.digest} {column_id} {row} {purges}"
    return xxhash.xxh3_128_hexdigest(told.encode())


def _known(request: Request, etag: str) -> Response | None:
    if not matches(request.headers.get("if-none-match"), f'"{etag}"'):
        return None
    return Response(
        status_code=304, headers={**SAFE, "ETag": f'"{etag}"', "Cache-Control": PRIVATE}
    )


def _numbers(take: str) -> tuple[int, ...]:
    if not take:
        return ()
    parts = take.split(",")
    if not all(part and len(part) < 17 for part in parts):
        raise InvalidInputError(f"take is numbers of rows with commas between, got {take!r:.120}")
    return tuple(map(int, parts))


def _cell_links(request: Request, content: CommitContent, space: str, path: str) -> CellLink:
    """Where cells are as files: at the commit itself, so that links stay what they are."""
    root = request.scope.get("root_path", "")
    base = f"{root}/api/v1/repositories/{content.access.name}/-/{space}/{quote(path)}/-"

    def link(column: Column, row: int) -> str:
        form = "image" if has_pictures(column.type) else "cell"
        return (
            f"{base}/{form}?{urlencode({'ref': content.commit, 'column': column.name, 'row': row})}"
        )

    return link
