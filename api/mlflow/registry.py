"""Registered models and their versions, as MLflow's clients ask for them."""

from __future__ import annotations

import re
from typing import Annotated, Final, cast

import msgspec
from fastapi import Depends, Request, Response

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.content import registry_changes, registry_records
from tensorrepo.api.content.registry_changes import STAGES, Stage
from tensorrepo.api.content.registry_rename import rename_model
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.mlflow.answers import model_json, version_json
from tensorrepo.api.mlflow.messages import Pair, answer, body_of, by_key, page, query_of
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.repo.errors import InvalidInputError

router: Final = deferred_router(
    prefix="/{repository:repository}/api/2.0/mlflow", include_in_schema=False
)
_MODELS: Final = "/registered-models"
_VERSIONS: Final = "/model-versions"
_MODELS_PAGE: Final = 100
_VERSIONS_PAGE: Final = 10_000
_RESERVED_ALIAS: Final = re.compile(r"latest|v[0-9]+", re.IGNORECASE)


class _NewModel(msgspec.Struct):
    name: str
    description: str = ""
    tags: list[Pair] = []


class _ByName(msgspec.Struct):
    name: str


class _Renamed(_ByName):
    new_name: str


class _Described(_ByName):
    description: str = ""


class _Tagged(_ByName):
    key: str
    value: str = ""


class _Aliased(_ByName):
    alias: str
    version: str = ""


class _Latest(_ByName):
    stages: list[str] = []


class _Search(msgspec.Struct):
    filter: str = ""
    max_results: int = 0
    order_by: list[str] = []
    page_token: str = ""


class _NewVersion(_ByName):
    source: str
    run_id: str = ""
    description: str = ""
    tags: list[Pair] = []
    model_id: str = ""


class _OfVersion(_ByName):
    version: str

    @property
    def number(self) -> int:
        """Raises InvalidInputError: versions are numbers."""
        if not (self.version.isascii() and self.version.isdecimal() and len(self.version) < 10):
            raise InvalidInputError(
                f"Parameter 'version' must be an integer, got {self.version!r:.80}"
            )
        return int(self.version)


class _DescribedVersion(_OfVersion):
    description: str = ""


class _TaggedVersion(_OfVersion):
    key: str
    value: str = ""


class _Staged(_OfVersion):
    stage: str
    archive_existing_versions: bool = False


@router.post(f"{_MODELS}/create")
def create_model(
    access: AccessOf, new: Annotated[_NewModel, Depends(body_of(_NewModel))]
) -> Response:
    made = registry_records.create_record(
        access, new.name, description=new.description, tags=by_key(new.tags)
    )
    return answer({"registered_model": model_json(made)})


@router.get(f"{_MODELS}/get")
def get_model(access: AccessOf, asked: Annotated[_ByName, Depends(query_of(_ByName))]) -> Response:
    return _model(access, asked.name)


@router.post(f"{_MODELS}/rename")
def rename(access: AccessOf, told: Annotated[_Renamed, Depends(body_of(_Renamed))]) -> Response:
    rename_model(access, told.name, told.new_name)
    return _model(access, told.new_name)


@router.patch(f"{_MODELS}/update")
def update_model(
    access: AccessOf, told: Annotated[_Described, Depends(body_of(_Described))]
) -> Response:
    registry_changes.describe(access, told.name, description=told.description)
    return _model(access, told.name)


@router.delete(f"{_MODELS}/delete")
def delete_model(access: AccessOf, told: Annotated[_ByName, Depends(body_of(_ByName))]) -> Response:
    registry_changes.delete_model(access, told.name)
    return answer({})


@router.get(f"{_MODELS}/search")
def search_models(
    access: AccessOf, asked: Annotated[_Search, Depends(query_of(_Search))]
) -> Response:
    found = registry_records.search_models(access, asked.filter, asked.order_by)
    shown, following = page(found, asked.page_token, asked.max_results, _MODELS_PAGE)
    return answer(
        {"registered_models": [model_json(one) for one in shown], "next_page_token": following}
    )


@router.post(f"{_MODELS}/get-latest-versions")
def get_latest(
    request: Request, access: AccessOf, asked: Annotated[_Latest, Depends(body_of(_Latest))]
) -> Response:
    note(request, None)  # it only asks
    return _latest(access, asked)


@router.get(f"{_MODELS}/get-latest-versions")
def get_latest_by_query(
    access: AccessOf, asked: Annotated[_Latest, Depends(query_of(_Latest))]
) -> Response:
    return _latest(access, asked)


@router.post(f"{_MODELS}/set-tag")
def set_model_tag(
    access: AccessOf, told: Annotated[_Tagged, Depends(body_of(_Tagged))]
) -> Response:
    registry_records.check_tags({told.key: told.value})
    registry_changes.describe(access, told.name, labels={told.key: told.value})
    return answer({})


@router.delete(f"{_MODELS}/delete-tag")
def delete_model_tag(
    access: AccessOf, told: Annotated[_Tagged, Depends(body_of(_Tagged))]
) -> Response:
    registry_records.check_tags({told.key: None})
    registry_changes.describe(access, told.name, labels={told.key: None})
    return answer({})


@router.post(f"{_MODELS}/alias")
def set_alias(access: AccessOf, told: Annotated[_Aliased, Depends(body_of(_Aliased))]) -> Response:
    version = _OfVersion(told.name, told.version)
    if _RESERVED_ALIAS.fullmatch(told.alias):
        raise InvalidInputError(
            f"alias {told.alias!r:.40} is reserved: clients name the newest version, and versions "
            "by their number, so. Take another"
        )
    registry_changes.set_alias(access, told.name, told.alias, version.number)
    return answer({})


@router.delete(f"{_MODELS}/alias")
def delete_alias(
    access: AccessOf, told: Annotated[_Aliased, Depends(body_of(_Aliased))]
) -> Response:
    registry_records.remove_alias(access, told.name, told.alias)
    return answer({})


@router.get(f"{_MODELS}/alias")
def get_by_alias(
    access: AccessOf, asked: Annotated[_Aliased, Depends(query_of(_Aliased))]
) -> Response:
    found = registry_records.version_by_alias(access, asked.name, asked.alias)
    return answer({"model_version": version_json(found)})


@router.post(f"{_VERSIONS}/create")
def create_version(
    access: AccessOf, service: ServiceOf, new: Annotated[_NewVersion, Depends(body_of(_NewVersion))]
) -> Response:
    made = registry_records.create_version(
        access,
        service.live,
        new.name,
        new.source,
        run=new.run_id,
        model=new.model_id,
        description=new.description,
        tags=by_key(new.tags),
        scratch=service.scratch,
    )
    return answer({"model_version": version_json(made)})


@router.get(f"{_VERSIONS}/get")
def get_version(
    access: AccessOf, asked: Annotated[_OfVersion, Depends(query_of(_OfVersion))]
) -> Response:
    return _version(access, asked)


@router.get(f"{_VERSIONS}/get-download-uri")
def get_download_uri(
    access: AccessOf, asked: Annotated[_OfVersion, Depends(query_of(_OfVersion))]
) -> Response:
    found = registry_records.version_record(access, asked.name, asked.number)
    return answer({"artifact_uri": found.artifacts})


@router.get(f"{_VERSIONS}/search")
def search_versions(
    access: AccessOf, asked: Annotated[_Search, Depends(query_of(_Search))]
) -> Response:
    found = registry_records.search_versions(access, asked.filter, asked.order_by)
    shown, following = page(found, asked.page_token, asked.max_results, _VERSIONS_PAGE)
    return answer(
        {"model_versions": [version_json(one) for one in shown], "next_page_token": following}
    )


@router.patch(f"{_VERSIONS}/update")
def update_version(
    access: AccessOf, told: Annotated[_DescribedVersion, Depends(body_of(_DescribedVersion))]
) -> Response:
    registry_changes.describe(access, told.name, told.number, description=told.description)
    return _version(access, told)


@router.post(f"{_VERSIONS}/transition-stage")
def set_stage(access: AccessOf, told: Annotated[_Staged, Depends(body_of(_Staged))]) -> Response:
    registry_changes.set_stage(
        access,
        told.name,
        told.number,
        _stage(told.stage),
        archive_existing=told.archive_existing_versions,
    )
    return _version(access, told)


@router.delete(f"{_VERSIONS}/delete")
def delete_version(
    access: AccessOf, told: Annotated[_OfVersion, Depends(body_of(_OfVersion))]
) -> Response:
    registry_records.remove_version(access, told.name, told.number)
    return answer({})


@router.post(f"{_VERSIONS}/set-tag")
def set_version_tag(
    access: AccessOf, told: Annotated[_TaggedVersion, Depends(body_of(_TaggedVersion))]
) -> Response:
    registry_records.check_tags({told.key: told.value})
    registry_changes.describe(access, told.name, told.number, labels={told.key: told.value})
    return answer({})


@router.delete(f"{_VERSIONS}/delete-tag")
def delete_version_tag(
    access: AccessOf, told: Annotated[_TaggedVersion, Depends(body_of(_TaggedVersion))]
) -> Response:
    registry_records.check_tags({told.key: None})
    registry_changes.describe(access, told.name, told.number, labels={told.key: None})
    return answer({})


def _model(access: AccessOf, name: str) -> Response:
    found = registry_records.model_record(access, name)
    return answer({"registered_model": model_json(found)})


def _version(access: AccessOf, asked: _OfVersion) -> Response:
    found = registry_records.version_record(access, asked.name, asked.number)
    return answer({"model_version": version_json(found)})


def _latest(access: AccessOf, asked: _Latest) -> Response:
    found = registry_records.latest_versions(access, asked.name, asked.stages)
    return answer({"model_versions": [version_json(one) for one in found]})


def _stage(text: str) -> Stage:
    """A stage in any case, as clients send it; `set_stage` refuses others."""
    return cast("Stage", next((one for one in STAGES if one.lower() == text.lower()), text))
