"""Door of the pages: who asks for one, and the gate to the repository that it is about."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.pages.rendering import RepositoryPage, WebPage
from tensorrepo.api.requests import access_of, caller_of, service_of


async def page_caller(request: Request) -> Caller:
    """Who asks: by session, or by bearer token. Raises UnauthenticatedError for nobody."""
    caller = await caller_of(request)
    caller.require_known()
    return caller


async def page_of(request: Request) -> WebPage:
    """A page of the service, for whoever is signed in."""
    return WebPage(request, await service_of(request), await page_caller(request))


async def repository_page_of(request: Request, repository: str) -> RepositoryPage:
    """A page about a repository, for who may enter it; see `access.gate.enter`."""
    service, caller = await service_of(request), await page_caller(request)
    access = await access_of(request, repository)
    if access.served.known_view is None:
        await run_in_threadpool(lambda: access.served.view)
    return RepositoryPage(request, service, caller, access=access)


PageOf = Annotated[WebPage, Depends(page_of)]
RepositoryPageOf = Annotated[RepositoryPage, Depends(repository_page_of)]
