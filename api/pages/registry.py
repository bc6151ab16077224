"""Pages of the registry: registered models, and one with its versions, aliases and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import numpy as np
from fastapi import Form, Query
from starlette.responses import Response

from tensorrepo.api.access.grants import Action
from tensorrepo.api.content import registry, registry_changes
from tensorrepo.api.content.registry import VersionInfo
from tensorrepo.api.content.registry_search import RegistrySearch, list_registered
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.forms import Text
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.routes.pagination import decode_cursor, encode_cursor
from tensorrepo.query.drawing import charts
from tensorrepo.repo.errors import Error
from tensorrepo.repo.registry.versions import alias_ref

router: Final = deferred_router(include_in_schema=False)
_NAMES: Final = 100  # of a page
_VERSIONS: Final = 100
_CHARTS: Final = 6


@router.get("/{repository:repository}/-/registry")
def registered(
    page: RepositoryPageOf,
    q: Annotated[str, Query(max_length=200)] = "",
    cursor: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Registered models by name, those whose name or description has `q`."""
    found, following = list_registered(
        page.access, RegistrySearch(text=q.strip()), after=decode_cursor(cursor), limit=_NAMES
    )
    return page.render(
        "registry.html",
        found=found,
        q=q.strip(),
        following=None if following is None else encode_cursor(following),
    )


@router.get("/{repository:repository}/-/registry/{name:path}")
def registered_model(
    page: RepositoryPageOf,
    name: str,
    below: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """One registered model: its versions, the newest first, and where its aliases are."""
    return _shown(page, name, below)


@router.post("/{repository:repository}/-/registry-change/{action}/{name:path}")
def change(
    page: RepositoryPageOf,
    action: Literal["describe", "alias", "unalias", "protect", "unprotect"],
    name: str,
    text: Text = "",
    alias: Annotated[str, Form(max_length=200)] = "",
    version: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Say something of a model, or move an alias; a fault is told on the model's page."""
    access, alias = page.access, alias.strip()
    try:
        if action == "describe":
            registry_changes.describe(access, name, version or None, description=text)
        elif action == "alias":
            registry_changes.set_alias(access, name, alias, version)
        elif action == "unalias":
            registry_changes.delete_alias(access, name, alias)
        else:
            registry_changes.protect_alias(access, name, alias, on=action == "protect")
    except Error as error:
        return _shown(page, name, fault=str(error), text=text if action == "describe" else None)
    return page.redirect(page.here("registry", name))


def _shown(
    page: RepositoryPage,
    name: str,
    below: int | None = None,
    *,
    fault: str = "",
    text: str | None = None,
) -> Response:
    access = page.access
    info = registry.get_model(access, name)
    versions = registry.list_versions(access, name, below=below, limit=_VERSIONS + 1)
    shown = versions[:_VERSIONS]
    return page.render(
        "registered_model.html",
        info=info,
        versions=shown,
        following=shown[-1].number if len(versions) > _VERSIONS else None,
        drawings=metric_charts(shown),
        may_describe=access.may(Action.WRITE, registry.card_ref(name)),
        may_alias=access.may(Action.WRITE, alias_ref(name, "new")),
        may_protect=access.may(Action.ADMIN, alias_ref(name, "new")),
        fault=fault,
        text=info.description if text is None else text,
    )


def metric_charts(versions: Sequence[VersionInfo]) -> list[tuple[str, str]]:
    """A line over the numbers of versions for each metric that at least two of them have."""
    ordered = sorted(versions, key=lambda one: one.number)
    found = []
    for name in dict.fromkeys(name for one in ordered for name in one.metrics):
        points = [
            (one.number, float(one.metrics[name]))
            for one in ordered
            if isinstance(one.metrics.get(name), int | float)
        ]
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            series = (np.array(steps, np.int64), np.array(values, np.float64))
            found.append((name, charts.line_chart({name: series})))
    return found[:_CHARTS]
