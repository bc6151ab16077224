"""Links that Hugging Face's clients print of what they wrote, each to the page that shows it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf

router: Final = deferred_router(include_in_schema=False)


@router.get("/{repository:namespace}/{name:namespace}/commit/{revision}")
@router.get("/datasets/{repository:namespace}/{name:namespace}/commit/{revision}")
def commit(page: RepositoryPageOf, revision: str) -> Response:
    """The commit that an upload made."""
    return page.redirect(page.here("commit", revision))


@router.get("/{repository:namespace}/{name:namespace}/discussions/{number:int}")
@router.get("/datasets/{repository:namespace}/{name:namespace}/discussions/{number:int}")
def discussion(page: RepositoryPageOf, number: int) -> Response:
    """The merge request that an upload opened."""
    return page.redirect(page.here("requests", str(number)))
