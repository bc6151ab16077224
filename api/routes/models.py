"""Models of commits: lists, descriptions, tensors, files, and how models compare."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query, Request, Response

from tensorrepo.api.content import model_bytes, models
from tensorrepo.api.content.model_catalog import MOST, DonorInfo, OwnerInfo, donors, owners
from tensorrepo.api.content.models import DEFAULT_REF, FileInfo, ModelDetails, ModelInfo, TensorInfo
from tensorrepo.api.content.registry_compare import model_card
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.cards import CARD_ANSWERS, CardFormat, answer_card
from tensorrepo.api.routes.downloads import DownloadResponse
from tensorrepo.api.routes.pagination import Cursor, Limit, ListPage, keyed_page
from tensorrepo.query.architecture import Ranking

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/models", tags=["models"]
)
RefOf = Annotated[
    str,
    Query(
        min_length=1,
        max_length=1024,
        description="Branch, tag, digest, `registry/NAME/v/N`, ... of the commit.",
        examples=["main"],
    ),
]
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The bytes."},
    206: {"description": "The range that was asked for."},
    304: {"description": "The caller has them."},
    416: {"description": "The range begins behind the end."},
}


@router.get("", summary="Models of a commit")
def list_models(
    access: AccessOf,
    ref: RefOf = DEFAULT_REF,
    prefix: Annotated[str, Query(max_length=1024, description="Beginning of names.")] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[ModelInfo]:
    """By name."""
    found = models.list_models(access, ref, prefix=prefix)
    items, following = keyed_page(((one.name, one) for one in found), cursor, limit)
    return ListPage(items=items, next=following)


@router.get("/{name:entry}", summary="One model")
def get_model(access: AccessOf, name: str, ref: RefOf = DEFAULT_REF) -> ModelDetails:
    """Layers, parameters, types, architecture, files, metrics and lineage; reads no tensor."""
    return models.get_model(access, name, ref)


@router.get("/{name:entry}/-/tensors", summary="Tensors of a model")
def list_tensors(
    access: AccessOf, name: str, ref: RefOf = DEFAULT_REF, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[TensorInfo]:
    """By name, with how each is stored."""
    found = models.list_tensors(models.find_model(access, name, ref))
    items, following = keyed_page(((one.name, one) for one in found), cursor, limit)
    return ListPage(items=items, next=following)


@router.get("/{name:entry}/-/files", summary="Files of a model")
def list_files(
    access: AccessOf, name: str, ref: RefOf = DEFAULT_REF, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[FileInfo]:
    """By name: those that came with it, and those that are made of its tensors."""
    found = models.list_files(models.find_model(access, name, ref))
    items, following = keyed_page(((one.name, one) for one in found), cursor, limit)
    return ListPage(items=items, next=following)


@router.api_route(
    "/{name:entry}/-/files/{file:path}",
    methods=["GET", "HEAD"],
    summary="A file of a model, byte for byte as it came",
    response_class=Response,
    responses=_BYTES,
)
def get_file(
    request: Request, access: AccessOf, name: str, file: str, ref: RefOf = DEFAULT_REF
) -> Response:
    """With one range, and conditions on its ETag, which is its SHA-256."""
    found = models.find_model(access, name, ref)
    return DownloadResponse(request, model_bytes.open_file(found, file))


@router.api_route(
    "/{name:entry}/-/tensors/{tensor:path}",
    methods=["GET", "HEAD"],
    summary="A tensor, or rows of it: raw and little-endian",
    response_class=Response,
    responses=_BYTES,
)
def get_tensor(
    request: Request,
    access: AccessOf,
    name: str,
    tensor: str,
    ref: RefOf = DEFAULT_REF,
    rows: Annotated[
        str | None, Query(max_length=40, description="`a:b`, half-open.", examples=["0:16"])
    ] = None,
) -> Response:
    """Elements in C order; type and shape are in `X-Tensor-Dtype` and `X-Tensor-Shape`."""
    found = models.find_model(access, name, ref)
    return DownloadResponse(request, model_bytes.open_tensor(found, tensor, rows))


@router.api_route(
    "/{name:entry}/-/safetensors",
    methods=["GET", "HEAD"],
    summary="Some tensors, or all, as a new safetensors file",
    response_class=Response,
    responses=_BYTES,
)
def get_safetensors(
    request: Request,
    access: AccessOf,
    name: str,
    tensor: Annotated[list[str], Query(max_length=10_000, description="Names; none: all.")] = [],  # noqa: B006  pydantic copies it
    ref: RefOf = DEFAULT_REF,
) -> Response:
    """The same bytes each time. A file that the model came from is among its files."""
    found = models.find_model(access, name, ref)
    return DownloadResponse(request, model_bytes.open_safetensors(found, tensor))


@router.get(
    "/{name:entry}/-/card",
    summary="The README.md of a model",
    response_class=Response,
    responses=CARD_ANSWERS,
)
def get_card(
    request: Request,
    access: AccessOf,
    name: str,
    ref: RefOf = DEFAULT_REF,
    form: CardFormat = "markdown",
) -> Response:
    """Empty where none came with it."""
    found = models.find_model(access, name, ref)
    return answer_card(request, model_card(found.model) or "", form)


@router.get("/{name:entry}/-/diff", summary="What changed between two models")
def diff(
    access: AccessOf,
    name: str,
    before: Annotated[str, Query(max_length=1024, description="Revision of the model before.")],
    ref: RefOf = DEFAULT_REF,
    before_name: Annotated[
        str | None, Query(max_length=4096, description="Its name, where it is another one.")
    ] = None,
    measure: Annotated[
        bool, Query(description="How far tensors moved: reads those that changed.")
    ] = False,
) -> dict[str, Any]:
    """Tensors added, removed, retyped and changed; files, metrics, config; layers by movement."""
    old = models.find_model(access, before_name or name, before)
    return models.diff(old, models.find_model(access, name, ref), measure=measure)


@router.get("/{name:entry}/-/similar", summary="Models that are like one")
def similar(
    access: AccessOf,
    name: str,
    ref: RefOf = DEFAULT_REF,
    every_ref: Annotated[bool, Query(description="Of all refs that the caller may read.")] = False,
) -> dict[str, Any]:
    """The nearest first, by signatures that are stored with them: no tensor is read."""
    return models.similar(access, models.find_model(access, name, ref), every_ref=every_ref)


@router.get("/{name:entry}/-/donors", summary="Models that begin like one")
def get_donors(
    access: AccessOf,
    service: ServiceOf,
    name: str,
    ref: RefOf = DEFAULT_REF,
    metric: Annotated[
        str | None, Query(max_length=256, description="Decides between equal beginnings.")
    ] = None,
    by_metric: Annotated[
        bool, Query(description="It counts first, among those that share half of the nodes.")
    ] = False,
    smallest: Annotated[bool, Query(description="Small values of it are good ones.")] = False,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 10,
) -> list[DonorInfo]:
    """Of all commits that the caller may read, the longest common beginning first."""
    found = models.find_model(access, name, ref)
    ranking = Ranking(metric, by_metric, smallest, limit)
    return donors(access, service.catalogs, found, ranking)


@router.get("/{name:entry}/-/owners", summary="Models that hold a tensor, bit for bit")
def get_owners(
    access: AccessOf,
    service: ServiceOf,
    name: str,
    tensor: Annotated[str, Query(max_length=4096, description="Name of the tensor.")],
    ref: RefOf = DEFAULT_REF,
) -> list[OwnerInfo]:
    """Of all commits that the caller may read."""
    return owners(access, service.catalogs, models.find_model(access, name, ref), tensor)
