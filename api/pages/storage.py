"""Page of storage: what a repository takes, logical, stored and shared, by what it is for."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.storage import StorageInfo, storage_info
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.query.drawing import charts
from tensorrepo.query.drawing.parts import COLORS
from tensorrepo.query.drawing.treemap import Tile, treemap
from tensorrepo.repo.changes.owner_usage import Owners
from tensorrepo.repo.tables import bytes_text

router: Final = deferred_router(include_in_schema=False)
_OWNERS: Final = 500


@router.get("/{repository:repository}/-/storage")
def storage(page: RepositoryPageOf, by: Owners = Owners.DATASET) -> Response:
    """The frame at once; what is counted comes after it, since it walks all objects."""
    page.access.require(Action.READ)
    if not page.is_fragment:
        return page.render("storage.html", by=by.value, kinds=[one.value for one in Owners])
    info = storage_info(page.access, by)
    owners = sorted(info.owners, key=lambda one: (-one.stored_bytes, one.owner))
    return page.render(
        "_storage.html",
        info=info,
        owners=owners[:_OWNERS],
        more=len(owners) - _OWNERS,
        shares=_shares(info),
        drawing=_map(info),
    )


def _shares(info: StorageInfo) -> str:
    """How the store's bytes divide: what one owner alone has, what several share, what none has."""
    unique = sum(one.unique_bytes for one in info.owners)
    parts = [
        (f"of one {info.by} alone", unique),
        (f"shared by several {info.by}s", info.stored_bytes - unique),
        ("of others", info.total_bytes - info.stored_bytes),
    ]
    return charts.shares([(name, size) for name, size in parts if size > 0])


def _map(info: StorageInfo) -> str:
    tiles = [
        Tile(one.owner, one.unique_bytes, at, f"{one.owner}: {bytes_text(one.unique_bytes)} alone")
        for at, one in enumerate(info.owners)
    ]
    shared = info.stored_bytes - sum(one.unique_bytes for one in info.owners)
    tiles.append(Tile("shared", shared, COLORS - 1, f"shared by several: {bytes_text(shared)}"))
    return treemap(tiles, f"Bytes by {info.by}")
