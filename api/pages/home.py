"""Pages of the service itself: its repositories, and a new one."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Form, Query
from starlette.responses import Response

from tensorrepo.api.access.grants import Action
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import PageOf
from tensorrepo.api.pages.rendering import WebPage
from tensorrepo.api.routes.pagination import keyed_page
from tensorrepo.api.routes.repositories import RepositoryInfo
from tensorrepo.repo.errors import Error

router: Final = deferred_router(include_in_schema=False)
_REPOSITORIES: Final = 100  # of a page


@router.get("/")
def repositories(
    page: PageOf,
    q: Annotated[str, Query(max_length=200)] = "",
    cursor: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Those that the caller may see, by name."""
    seen = (
        (one.name, RepositoryInfo(name=one.name, description=one.description, may=level.word))
        for one in page.service.directory.listed()
        if (level := page.caller.level(one.name)) is not None
        and q.strip().lower() in one.name.lower()
    )
    items, following = keyed_page(seen, cursor, _REPOSITORIES)
    return page.render(
        "repositories.html",
        repositories=items,
        following=following,
        wanted=q.strip(),
        may_make=_may_make(page),
    )


@router.get("/settings/new-repository")
def new_repository(page: PageOf) -> Response:
    """The form that makes one."""
    return page.render("new_repository.html", fault="", name="", description="")


@router.post("/settings/new-repository")
def make_repository(
    page: PageOf,
    name: Annotated[str, Form(max_length=200)] = "",
    description: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Make it, or say in the form why it cannot be made."""
    try:
        page.service.require_admin(page.caller, name)
        page.service.directory.create(name, description=description)
    except Error as error:
        return page.render(
            "new_repository.html", fault=str(error), name=name, description=description
        )
    return page.redirect(page.href(name))


def _may_make(page: WebPage) -> bool:
    """Whether there is a name that the caller may make a repository of."""
    return any(grant.action is Action.ADMIN for grant in page.caller.grants)
