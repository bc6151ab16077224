"""Experiments, as MLflow's clients ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request, Response

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.content import experiments
from tensorrepo.api.content.experiments import Experiment
from tensorrepo.api.content.record_filter import (
    TAG,
    FilterFields,
    Lookup,
    fits_all,
    parse_filter,
    sort_records,
)
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.mlflow.answers import experiment_json
from tensorrepo.api.mlflow.messages import Pair, answer, body_of, by_key, page, query_of
from tensorrepo.api.requests import AccessOf

router: Final = deferred_router(
    prefix="/{repository:repository}/api/2.0/mlflow/experiments", include_in_schema=False
)
FIELDS: Final = FilterFields(
    texts=frozenset({"name", "experiment_id"}),
    numbers=frozenset({"creation_time", "last_update_time"}),
    kinds=frozenset({TAG}),
    lists=frozenset({"experiment_id"}),
)
_PAGE: Final = 1000


class _New(msgspec.Struct):
    name: str
    tags: list[Pair] = []


class _ById(msgspec.Struct):
    experiment_id: str


class _ByName(msgspec.Struct):
    experiment_name: str


class _Rename(_ById):
    new_name: str | None = None


class _TagOf(_ById):
    key: str
    value: str = ""


class _Search(msgspec.Struct):
    filter: str = ""
    order_by: list[str] = []
    view_type: str = "ACTIVE_ONLY"
    max_results: int = 0
    page_token: str = ""


@router.post("/create")
def create(access: AccessOf, new: Annotated[_New, Depends(body_of(_New))]) -> Response:
    made = experiments.create_experiment(access, new.name, by_key(new.tags))
    return answer({"experiment_id": made.id})


@router.get("/get")
def get(access: AccessOf, asked: Annotated[_ById, Depends(query_of(_ById))]) -> Response:
    found = experiments.get_experiment(access, asked.experiment_id)
    return answer({"experiment": experiment_json(found)})


@router.get("/get-by-name")
def get_by_name(
    access: AccessOf, asked: Annotated[_ByName, Depends(query_of(_ByName))]
) -> Response:
    found = experiments.find_experiment(access, asked.experiment_name)
    return answer({"experiment": experiment_json(found)})


@router.post("/search")
def search(
    request: Request, access: AccessOf, asked: Annotated[_Search, Depends(body_of(_Search))]
) -> Response:
    note(request, None)  # it only asks
    return _search(access, asked)


@router.get("/search")
def search_by_query(
    access: AccessOf, asked: Annotated[_Search, Depends(query_of(_Search))]
) -> Response:
    return _search(access, asked)


@router.post("/update")
def update(access: AccessOf, told: Annotated[_Rename, Depends(body_of(_Rename))]) -> Response:
    experiments.change_experiment(access, told.experiment_id, name=told.new_name)
    return answer({})


@router.post("/delete")
def delete(access: AccessOf, told: Annotated[_ById, Depends(body_of(_ById))]) -> Response:
    experiments.change_experiment(access, told.experiment_id, is_deleted=True)
    return answer({})


@router.post("/restore")
def restore(access: AccessOf, told: Annotated[_ById, Depends(body_of(_ById))]) -> Response:
    experiments.change_experiment(access, told.experiment_id, is_deleted=False)
    return answer({})


@router.post("/set-experiment-tag")
def set_tag(access: AccessOf, told: Annotated[_TagOf, Depends(body_of(_TagOf))]) -> Response:
    tags: Mapping[str, str | None] = {told.key: told.value}
    experiments.change_experiment(access, told.experiment_id, tags=tags)
    return answer({})


@router.post("/delete-experiment-tag")
def delete_tag(access: AccessOf, told: Annotated[_TagOf, Depends(body_of(_TagOf))]) -> Response:
    experiments.change_experiment(access, told.experiment_id, tags={told.key: None})
    return answer({})


def _search(access: AccessOf, asked: _Search) -> Response:
    clauses = parse_filter(asked.filter, FIELDS)
    found = [
        one
        for one in reversed(experiments.list_experiments(access))
        if asked.view_type == "ALL" or one.is_deleted == (asked.view_type == "DELETED_ONLY")
        if fits_all(clauses, _lookup(one))
    ]
    ordered = sort_records(found, asked.order_by, FIELDS, _lookup)
    shown, following = page(ordered, asked.page_token, asked.max_results, _PAGE)
    return answer(
        {"experiments": [experiment_json(one) for one in shown], "next_page_token": following}
    )


def _lookup(one: Experiment) -> Lookup:
    def value(kind: str, key: str) -> object:
        if kind == TAG:
            return one.tags.get(key)
        attributes = {
            "name": one.name,
            "experiment_id": one.id,
            "creation_time": one.created_ms,
            "last_update_time": one.updated_ms,
        }
        return attributes.get(key)

    return value
