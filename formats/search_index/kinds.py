"""Kinds of indexes: which there are, which columns they are of, and the options that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from tensorrepo.formats.common.arguments import chosen, whole
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Text
from tensorrepo.formats.dataset.searching.nearest import METRICS, check_vectors
from tensorrepo.formats.dataset.searching.text_search import check_text
from tensorrepo.formats.dataset.selecting.pruning import has_bounds
from tensorrepo.formats.search_index.sorted_values import check_sortable
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

Family: TypeAlias = Literal["vectors", "words", "values"]

# name: what it is of, Lance's name, and options that it takes
VECTOR_KINDS: Final = {
    "ivf_pq": ("IVF_PQ", ("partitions", "sub_vectors")),
    "ivf_sq": ("IVF_SQ", ("partitions",)),
    "ivf_flat": ("IVF_FLAT", ("partitions",)),
    "ivf_hnsw_sq": ("IVF_HNSW_SQ", ("partitions", "m", "ef_construction")),
    "ivf_hnsw_pq": ("IVF_HNSW_PQ", ("partitions", "sub_vectors", "m", "ef_construction")),
}
TEXT: Final = "text"
BTREE: Final = "btree"
KINDS: Final = (*VECTOR_KINDS, "hnsw", TEXT, BTREE)
_SHORT: Final = {"hnsw": "ivf_hnsw_sq"}
_LEAST: Final = {"partitions": 1, "sub_vectors": 1, "m": 2, "ef_construction": 1}
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """An index that is wanted.

    Attributes:
        kind: one of `KINDS`, without short names.
        metric: distance that it is for; ``""`` where it has none.
        options: numbers, by name.
    """

    kind: str
    metric: str
    options: Mapping[str, Any]

    @property
    def family(self) -> Family:
        return family_of(self.kind)


def family_of(kind: str) -> Family:
    """What an index of a kind is of."""
    if kind == BTREE:
        return "values"
    return "words" if kind == TEXT else "vectors"


def usual_kind(column: Column) -> str:
    """Kind of an index of a column where none is asked for."""
    if isinstance(column.type, Text):
        return TEXT
    return BTREE if has_bounds(column) else "ivf_pq"


def index_request(
    column: Column, kind: str | None, metric: str | None, options: Mapping[str, Any]
) -> IndexRequest:
    """What is asked for, checked: of a column, a kind (None: the usual one), a metric and options.

    Raises:
        InvalidInputError: they do not fit each other, or no index is of such a column.
    """
    kind = usual_kind(column) if kind is None else chosen("kind", kind, KINDS)
    kind = _SHORT.get(kind, kind)
    allowed: tuple[str, ...] = ()
    if family_of(kind) != "vectors":
        check = check_text if kind == TEXT else check_sortable
        check(column)
        if metric is not None:
            raise InvalidInputError(
                f"metric is of vectors: an index of {family_of(kind)} takes none"
            )
    else:
        check_vectors(column)
        metric = "l2" if metric is None else chosen("metric", metric, METRICS)
        _, allowed = VECTOR_KINDS[kind]
    for name in options:
        if name not in allowed:
            takes = ", ".join(allowed) or "no options"
            raise InvalidInputError(f"an index of kind {kind!r} takes {takes}; got {name!r}")
    checked = {name: whole(name, options[name], _LEAST[name], _MOST) for name in sorted(options)}
    if "sub_vectors" in checked and column.storage.row_shape[0] % checked["sub_vectors"]:
        raise InvalidInputError(
            f"sub_vectors={checked['sub_vectors']} does not divide the "
            f"{column.storage.row_shape[0]} numbers of column {column.name!r}"
        )
    return IndexRequest(kind, metric or "", checked)
