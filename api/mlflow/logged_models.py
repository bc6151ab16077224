"""Logged models, as MLflow's clients since 3.0 ask for them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request, Response

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.content import logged_models
from tensorrepo.api.content.artifacts import ArtifactPlace, list_artifacts
from tensorrepo.api.content.logged_models import LoggedModel, NewLoggedModel
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.mlflow.answers import files_json, logged_model_json
from tensorrepo.api.mlflow.messages import Pair, answer, body_of, by_key, page, query_of
from tensorrepo.api.requests import AccessOf, ServiceOf

router: Final = deferred_router(
    prefix="/{repository:repository}/api/2.0/mlflow/logged-models", include_in_schema=False
)
_PAGE: Final = 100


class _New(msgspec.Struct):
    experiment_id: str = "0"
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    params: list[Pair] = []
    tags: list[Pair] = []


class _Finished(msgspec.Struct):
    status: str


class _Tags(msgspec.Struct):
    tags: list[Pair] = []


class _Params(msgspec.Struct):
    params: list[Pair] = []


class _Order(msgspec.Struct):
    field_name: str
    ascending: bool = True


class _Search(msgspec.Struct):
    experiment_ids: list[str] = []
    filter: str = ""
    max_results: int = 0
    order_by: list[_Order] = []
    page_token: str = ""


class _Asked(msgspec.Struct):
    allow_deleted: str = ""


class _Listing(msgspec.Struct):
    artifact_directory_path: str = ""


@router.post("")
def create(access: AccessOf, new: Annotated[_New, Depends(body_of(_New))]) -> Response:
    made = logged_models.create_logged_model(
        access,
        NewLoggedModel(
            new.experiment_id,
            new.name,
            new.model_type,
            new.source_run_id,
            by_key(new.tags),
            by_key(new.params),
        ),
    )
    return _model(made)


@router.post("/search")
def search(
    request: Request, access: AccessOf, asked: Annotated[_Search, Depends(body_of(_Search))]
) -> Response:
    note(request, None)  # it only asks
    found = logged_models.search_logged_models(
        access,
        experiments=asked.experiment_ids,
        filter_text=asked.filter,
        order_by=[
            f"{one.field_name} {'ASC' if one.ascending else 'DESC'}" for one in asked.order_by
        ],
    )
    shown, following = page(found, asked.page_token, asked.max_results, _PAGE)
    return answer(
        {"models": [logged_model_json(one) for one in shown], "next_page_token": following}
    )


@router.get("/{model_id}")
def get(
    access: AccessOf, model_id: str, asked: Annotated[_Asked, Depends(query_of(_Asked))]
) -> Response:
    with_deleted = asked.allow_deleted.lower() == "true"
    return _model(logged_models.get_logged_model(access, model_id, with_deleted=with_deleted))


@router.patch("/{model_id}")
def finish(
    access: AccessOf,
    service: ServiceOf,
    model_id: str,
    told: Annotated[_Finished, Depends(body_of(_Finished))],
) -> Response:
    made = logged_models.finish_logged_model(
        access, service.live, model_id, told.status, scratch=service.scratch
    )
    return _model(made)


@router.delete("/{model_id}")
def delete(access: AccessOf, model_id: str) -> Response:
    logged_models.delete_logged_model(access, model_id)
    return answer({})


@router.patch("/{model_id}/tags")
def set_tags(
    access: AccessOf, model_id: str, told: Annotated[_Tags, Depends(body_of(_Tags))]
) -> Response:
    return _model(logged_models.change_logged_model(access, model_id, tags=by_key(told.tags)))


@router.delete("/{model_id}/tags/{key:path}")
def delete_tag(access: AccessOf, model_id: str, key: str) -> Response:
    logged_models.change_logged_model(access, model_id, tags={key: None})
    return answer({})


@router.post("/{model_id}/params")
def log_params(
    access: AccessOf, model_id: str, told: Annotated[_Params, Depends(body_of(_Params))]
) -> Response:
    logged_models.change_logged_model(access, model_id, params=by_key(told.params))
    return answer({})


@router.get("/{model_id}/artifacts/directories")
def list_files(
    access: AccessOf, model_id: str, asked: Annotated[_Listing, Depends(query_of(_Listing))]
) -> Response:
    folder = asked.artifact_directory_path.strip("/")
    found = list_artifacts(access, ArtifactPlace("models", model_id, folder))
    root = ArtifactPlace("models", model_id).uri
    return answer({"root_uri": root, "files": files_json(found, folder)})


def _model(model: LoggedModel) -> Response:
    return answer({"model": logged_model_json(model)})
