"""Static files of the pages: style, scripts and their licenses; open to everybody."""

from __future__ import annotations

from typing import Final

from starlette.responses import FileResponse, Response

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.rendering import STATIC
from tensorrepo.repo.errors import NotFoundError

router: Final = deferred_router(prefix="/static", include_in_schema=False)
_NAMES: Final = frozenset(path.name for path in STATIC.iterdir())
_FOREVER: Final = "public, max-age=31536000, immutable"


@router.get("/{name}")
async def static_file(name: str, v: str = "") -> Response:
    """A file that comes with the service; with its version in the URL it may be kept for ever."""
    if name not in _NAMES:
        raise NotFoundError(f"there is no static file {name!r:.60}")
    return FileResponse(STATIC / name, headers={"Cache-Control": _FOREVER if v else "no-cache"})
