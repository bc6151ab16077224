"""Which stored models have this in them, begin like this one, or hold this tensor?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.blueprint import Blueprint, graph_of
from tensorrepo.formats.arguments import encodable
from tensorrepo.given import check_instance
from tensorrepo.model import Model
from tensorrepo.query import architecture
from tensorrepo.query.architecture import Donor, Owner, PathFound, Ranking

if TYPE_CHECKING:
    from tensorrepo.catalog import Catalog

__all__ = ["Donor", "Owner", "PathFound", "Ranking", "find_donors", "find_models", "find_owners"]


def find_models(
    catalog: Catalog, first: str, last: str | None = None, *, steps: int | None = None
) -> list[PathFound]:
    """See `Catalog.find_models`."""
    for name, pattern in (("first", first), ("last", last)):
        if pattern is not None or name == "first":
            encodable(name, pattern)
    with catalog.reading() as connection:
        return list(architecture.models_with_path(connection, first, last, steps=steps))


def find_donors(catalog: Catalog, target: Blueprint, ranking: Ranking) -> list[Donor]:
    """See `Catalog.donors`. A model is not a donor to itself."""
    own = (target.digest,) if isinstance(target, Model) else ()
    graph = graph_of(target)
    with catalog.reading() as connection:
        return architecture.donors(connection, graph, ranking, without=own)


def find_owners(catalog: Catalog, model: Model, tensor: str) -> list[Owner]:
    """See `Catalog.owners`."""
    check_instance("model", model, Model, "one of the repository, as repo.model(...) gives it")
    model.spec(encodable("tensor", tensor))  # says which names are near
    with catalog.reading() as connection:
        return architecture.owners(connection, model.digest, tensor)
