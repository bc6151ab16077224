"""Page of lineage: what something came from and what came of it, as a drawing with links."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.content.lineage import LineageRequest, lineage_of
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.pages.repository import (
    Ref,
    entry_lines,
    nothing_yet,
    ref_link,
    ref_names,
    revision_at,
)
from tensorrepo.query.drawing.lineage import MOST_DRAWN, draw_steps
from tensorrepo.query.lineage import LineageNode, LineageStep

router: Final = deferred_router(include_in_schema=False)
_ENTRIES: Final = 200
_SHOWN_STEPS: Final = 500
_WITH_PAGES: Final = ("datasets/", "models/", "views/", "files/", "runs/")


@router.get("/{repository:repository}/-/lineage")
def lineage(
    page: RepositoryPageOf,
    ref: Ref = "",
    path: Annotated[str, Query(max_length=4096)] = "",
    depth: Annotated[int, Query(ge=1, le=20)] = 4,
) -> Response:
    """Around one thing; without a path, which things there are to begin at."""
    if (empty := nothing_yet(page, "lineage")) is not None:
        return empty
    if not path:
        return _choice(page, ref)
    ref, revision = revision_at(page, ref)
    content = page.service.at(page.access, revision.digest)
    found = lineage_of(content, page.service.catalogs, path, LineageRequest(depth=depth))
    steps = [*found.up, *found.down]
    drawn = nearest(steps)
    drawing = draw_steps(found.start, drawn).svg(link=lambda node: _page_of(page, node))
    return page.render(
        "lineage.html",
        refs=ref_names(page.access),
        refs_to=ref_link(page, "lineage", path=path),
        ref=ref,
        path=path,
        depth=depth,
        drawing=drawing,
        steps=steps[:_SHOWN_STEPS],
        left_out=len(steps) - len(drawn),
        page_of=lambda node: _page_of(page, node),
    )


def nearest(steps: Sequence[LineageStep], most: int = MOST_DRAWN) -> list[LineageStep]:
    """Edges, the nearest first, that join no more things than fit a drawing."""
    drawn: list[LineageStep] = []
    keys: set[str] = set()
    for step in steps:
        ends = {step.subject.key, step.origin.key}
        if len(keys | ends) <= most:
            keys |= ends
            drawn.append(step)
    return drawn


def _choice(page: RepositoryPage, ref: str) -> Response:
    ref, revision = revision_at(page, ref)
    lines = entry_lines(page.access, revision.commit.tree)
    some = (one for one in lines if one.kind in {"dataset", "model", "view"})
    entries = list(islice(some, _ENTRIES + 1))
    return page.render(
        "lineage_choice.html",
        refs=ref_names(page.access),
        refs_to=ref_link(page, "lineage"),
        ref=ref,
        entries=entries[:_ENTRIES],
        more=len(entries) > _ENTRIES,
    )


def _page_of(page: RepositoryPage, node: LineageNode) -> str:
    """Where a thing has its page; "" for what is not here."""
    if not node.stored or not node.path.startswith(_WITH_PAGES):
        return ""
    return page.here(node.path, ref=None if node.kind == "run" else node.commit)
