"""Which rows say what something came from?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tensorrepo.formats.lineage import relation_of
from tensorrepo.query import tables
from tensorrepo.query.sync.values import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.formats.lineage import Edge
    from tensorrepo.query.sync.loader import Rows

_KINDS: Final = {
    "datasets": "dataset", "files": "file", "models": "model", "runs": "run", "views": "view",
}  # fmt: skip


def edge_rows(stated_by: str, kind: str, edges: Iterable[Edge]) -> Rows:
    """The edges that object `stated_by` tells of itself, which is a `kind`."""
    for place, edge in enumerate(edges):
        yield (
            tables.lineage_edge,
            (
                stated_by,
                place,
                kind,
                stated_by,
                relation_of(edge.relation),
                kind_of_path(edge.path),
                edge.path,
                edge.digest or None,
                edge.commit,
                as_json(edge.details),
            ),
        )


def kind_of_path(path: str) -> str:
    """What lies at a path of a repository, as its first folder tells; a URL is a "url"."""
    if "://" in path:
        return "url"
    return _KINDS.get(path.partition("/")[0], "file")
