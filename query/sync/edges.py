"""Which rows say what something came from?"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from tensorrepo.formats.lineage import relation_of
from tensorrepo.query import tables
from tensorrepo.query.dialects import shown
from tensorrepo.query.sync.values import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Table

    from tensorrepo.formats.lineage import Edge
    from tensorrepo.query.sync.loader import Row, Rows

_KINDS: Final = {
    "datasets": "dataset", "files": "file", "models": "model", "runs": "run", "views": "view",
}  # fmt: skip


def edge_rows(stated_by: str, kind: str, edges: Iterable[Edge], subject: str | None = None) -> Rows:
    """The edges that object `stated_by` tells of `subject`, which is a `kind`; None: of itself."""
    subject = stated_by if subject is None else subject
    for place, edge in enumerate(edges):
        digest, origin = edge.digest or None, kind_of_path(edge.path)
        told = (relation_of(edge.relation), origin, edge.path, digest, edge.commit)
        yield edge_row(stated_by, place, (kind, subject, *told, as_json(edge.details)))


def edge_row(stated_by: str, place: int, told: Row) -> tuple[Table, Row]:
    """A row of `lineage_edge` of its columns from `subject_kind` to `detail`."""
    _, subject, _, _, path, origin, _, _ = told
    ends = hash_of(subject), hash_of(path if origin is None else origin)
    return tables.lineage_edge, (stated_by, place, *told, *ends)


def hash_of(key: str) -> int:
    """The first 8 bytes of SHA-256 of what names a thing, as a number with a sign.

    Walks go by it. Things that share one are told apart by their names, afterwards.
    """
    name = shown(key).encode(errors="surrogatepass")
    return int.from_bytes(sha256(name).digest()[:8], "big", signed=True)


def kind_of_path(path: str) -> str:
    """What lies at a path of a repository, as its first folder tells; a URL is a "url"."""
    if "://" in path:
        return "url"
    return _KINDS.get(path.partition("/")[0], "file")
