"""Registered models, their versions and aliases."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.content import registry, registry_changes
from tensorrepo.api.content.registry import RegisteredModelInfo, VersionInfo
from tensorrepo.api.content.registry_changes import STAGES, AliasMoveInfo, Stage
from tensorrepo.api.content.registry_compare import (
    VersionComparison,
    compare_versions,
    registry_card,
)
from tensorrepo.api.content.registry_search import (
    MetricFilter,
    RegistrySearch,
    list_registered,
    parse_label,
)
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf
from tensorrepo.api.routes.cards import CARD_ANSWERS, CardFormat, answer_card
from tensorrepo.api.routes.conditional import answer_json
from tensorrepo.api.routes.pagination import (
    Cursor,
    Limit,
    ListPage,
    decode_cursor,
    encode_cursor,
    number_behind,
)

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/registry", tags=["registry"]
)

Labels = Annotated[dict[Annotated[str, Field(max_length=255)], str | None], Field(max_length=1000)]
Version = Annotated[int, Field(ge=1, le=999_999_999, description="Number of a version.")]


class Words(BaseModel):
    """What is said about a model or a version."""

    description: str | None = Field(default=None, description="Markdown; null keeps what is there.")
    labels: Labels = Field(default={}, description="To set; one that is null is removed.")


class NewRegisteredModel(BaseModel):
    """A name for versions of a model, before there are any."""

    name: str = Field(max_length=1000, examples=["vision/classifier"])
    description: str = Field(default="", description="Markdown.")
    labels: dict[str, str] = {}


class NewVersion(BaseModel):
    """What becomes the next version."""

    ref: str = Field(default="main", max_length=1024, description="Branch, tag or digest.")
    path: str = Field(max_length=4096, examples=["models/classifier"])
    message: str = Field(default="", max_length=64 << 10)
    alias: str | None = Field(default=None, max_length=255, description="Names it from then on.")


class NewAlias(BaseModel):
    """What an alias is to name."""

    version: Version


class Protection(BaseModel):
    """Whether an alias is protected."""

    protected: bool


class NewStage(BaseModel):
    """A stage, for clients that know stages."""

    stage: Stage = Field(description=f"One of {', '.join(STAGES)}.")
    archive_existing: bool = Field(
        default=False, description="Archive other versions of that stage in the same change."
    )


class Deleted(BaseModel):
    """What was deleted."""

    versions: int = Field(description="Number of versions that there were.")


@router.get("", summary="Registered models that the caller may see, searched")
def list_registered_models(
    access: AccessOf,
    text: Annotated[str, Query(max_length=200, description="In name or description.")] = "",
    label: Annotated[
        list[str], Query(max_length=20, description="`name=value`, or `name` of any value.")
    ] = [],  # noqa: B006  pydantic copies it
    alias: Annotated[str | None, Query(max_length=255)] = None,
    metric: Annotated[
        list[str], Query(max_length=20, description="Of the newest version: `accuracy>=0.9`.")
    ] = [],  # noqa: B006
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[RegisteredModelInfo]:
    """By name. A page may have fewer items than `limit`, though more follow: ask until `next` is
    null.
    """
    search = RegistrySearch(
        text, dict(map(parse_label, label)), alias, tuple(map(MetricFilter.parse, metric))
    )
    items, after = list_registered(access, search, after=decode_cursor(cursor), limit=limit)
    return ListPage(items=items, next=None if after is None else encode_cursor(after))


@router.post("", status_code=201, summary="Name a model before its first version")
def create_registered_model(access: AccessOf, new: NewRegisteredModel) -> RegisteredModelInfo:
    """409 where the name is taken."""
    return registry_changes.create_model(
        access, new.name, description=new.description, labels=new.labels
    )


@router.get("/{name:entry}", summary="One registered model", response_model=RegisteredModelInfo)
async def get_registered_model(request: Request, access: AccessOf, name: str) -> Response:
    """Its aliases, description and labels."""
    found = registry.known_model(access, name)
    if found is None:
        found = await run_in_threadpool(registry.get_model, access, name)
    return answer_json(request, found)


@router.patch("/{name:entry}", summary="Say what a model is")
def describe_model(access: AccessOf, name: str, words: Words) -> RegisteredModelInfo:
    """Description and labels; what is not named stays."""
    registry_changes.describe(access, name, description=words.description, labels=words.labels)
    return registry.get_model(access, name)


@router.delete("/{name:entry}", summary="Remove all versions and aliases of a model")
def delete_model(access: AccessOf, name: str) -> Deleted:
    """409 where an alias is protected. Numbers are not given again."""
    return Deleted(versions=registry_changes.delete_model(access, name))


@router.get(
    "/{name:entry}/-/card",
    summary="What is written about a model",
    response_class=Response,
    responses=CARD_ANSWERS,
)
def get_card(
    request: Request,
    access: AccessOf,
    name: str,
    version: Annotated[str | None, Query(max_length=255, description="Number or alias.")] = None,
    form: CardFormat = "markdown",
) -> Response:
    """Its description, else the README.md of the newest version; of a version the same."""
    return answer_card(request, registry_card(access, name, version), form)


@router.get("/{name:entry}/-/compare", summary="Versions side by side")
def compare(
    access: AccessOf,
    name: str,
    version: Annotated[list[str], Query(min_length=1, max_length=8, description="1 to 8.")],
) -> VersionComparison:
    """Metrics, parameters of their runs, sizes, and which tensors changed."""
    return compare_versions(access, name, version)


@router.post("/{name:entry}/-/versions", status_code=201, summary="Register the next version")
def register_version(access: AccessOf, name: str, new: NewVersion) -> VersionInfo:
    """Of a model in a commit. Its number is given once, and what it is never changes."""
    return registry_changes.register_version(
        access, name, new.path, ref=new.ref, message=new.message, alias=new.alias
    )


@router.get("/{name:entry}/-/versions", summary="Versions, the newest first")
def list_versions(
    access: AccessOf, name: str, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[VersionInfo]:
    """All that the caller may see."""
    below = None if cursor is None else number_behind(cursor)
    items = registry.list_versions(access, name, below=below, limit=limit + 1)
    more = len(items) > limit
    following = encode_cursor(str(items[limit - 1].number)) if more else None
    return ListPage(items=items[:limit], next=following)


@router.get(
    "/{name:entry}/-/versions/{which}",
    summary="One version, by its number or an alias",
    response_model=VersionInfo,
)
async def get_version(request: Request, access: AccessOf, name: str, which: str) -> Response:
    """`which` is a number, or the name of an alias."""
    return await _version(request, access, name, which)


@router.patch("/{name:entry}/-/versions/{number}", summary="Say what a version is")
def describe_version(access: AccessOf, name: str, number: Version, words: Words) -> VersionInfo:
    """Description and labels; what is not named stays."""
    registry_changes.describe(
        access, name, number, description=words.description, labels=words.labels
    )
    return registry.get_version(access, name, number)


@router.delete("/{name:entry}/-/versions/{number}", status_code=204, summary="Remove a version")
def delete_version(access: AccessOf, name: str, number: Version) -> None:
    """409 where an alias names it. Its number is not given again."""
    registry_changes.delete_version(access, name, number)


@router.put("/{name:entry}/-/versions/{number}/stage", summary="Give a version a stage")
def set_stage(access: AccessOf, name: str, number: Version, new: NewStage) -> VersionInfo:
    """For clients that know stages; aliases say more."""
    return registry_changes.set_stage(
        access, name, number, new.stage, archive_existing=new.archive_existing
    )


@router.get(
    "/{name:entry}/-/aliases/{alias}",
    summary="The version that an alias names",
    response_model=VersionInfo,
)
async def get_alias(request: Request, access: AccessOf, name: str, alias: str) -> Response:
    """As asking for the version by the name of the alias."""
    return await _version(request, access, name, alias)


@router.put("/{name:entry}/-/aliases/{alias}", summary="Let an alias name a version")
def set_alias(access: AccessOf, name: str, alias: str, new: NewAlias) -> VersionInfo:
    """New or moved; 409 where it is protected."""
    return registry_changes.set_alias(access, name, alias, new.version)


@router.delete("/{name:entry}/-/aliases/{alias}", status_code=204, summary="Remove an alias")
def delete_alias(access: AccessOf, name: str, alias: str) -> None:
    """The version stays; 409 where it is protected."""
    registry_changes.delete_alias(access, name, alias)


@router.put("/{name:entry}/-/aliases/{alias}/protection", summary="Protect an alias, or not")
def protect_alias(access: AccessOf, name: str, alias: str, new: Protection) -> RegisteredModelInfo:
    """For admins: a protected alias may neither move nor go."""
    registry_changes.protect_alias(access, name, alias, on=new.protected)
    return registry.get_model(access, name)


@router.get("/{name:entry}/-/aliases/{alias}/history", summary="Where an alias was")
def alias_history(
    access: AccessOf, name: str, alias: str, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[AliasMoveInfo]:
    """The newest first."""
    moves = registry_changes.alias_history(access, name, alias)
    start = number_behind(cursor)
    items = moves[start : start + limit]
    stop = start + len(items)
    return ListPage(items=items, next=encode_cursor(str(stop)) if stop < len(moves) else None)


async def _version(request: Request, access: AccessOf, name: str, which: str) -> Response:
    found = registry.known_version(access, name, which)
    if found is None:
        found = await run_in_threadpool(registry.get_version, access, name, which)
    return answer_json(request, found)
