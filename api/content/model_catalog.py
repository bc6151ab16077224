"""What the catalog knows of models: donors, and who else holds a tensor, for one caller.

The catalog has rows of all refs; who may not read all is given those that they may read.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.content.catalogs import Catalogs
from tensorrepo.api.content.models import FoundModel
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.query import architecture
from tensorrepo.query.architecture import Ranking
from tensorrepo.query.catalog.visibility import Visible

MOST: Final = 100
_LOOKED_AT: Final = 2000  # where some of them may not be seen


class ModelPlace(BaseModel):
    """A path of a commit where a model stands."""

    model_config = ConfigDict(frozen=True)

    path: str
    commit: str


class DonorInfo(BaseModel):
    """A model that begins like another one."""

    model_config = ConfigDict(frozen=True)

    digest: str
    shared: int = Field(description="Nodes in the longest common beginning.")
    nodes: int = Field(description="Nodes of the model asked about.")
    value: float | None = Field(description="Of the metric asked for.")
    places: list[ModelPlace]


class OwnerInfo(BaseModel):
    """A model that holds a tensor, bit for bit."""

    model_config = ConfigDict(frozen=True)

    digest: str
    tensor: str = Field(description="Its name there.")
    places: list[ModelPlace]


def donors(
    access: RepositoryAccess, catalogs: Catalogs, found: FoundModel, ranking: Ranking
) -> list[DonorInfo]:
    """Models of all commits that begin like one, the longest common beginning first."""
    wanted, own = ranking.limit, (found.model.entry.digest,)
    graph = model_graph(found.model)
    with catalogs.reading(access) as (connection, visible):
        most = wanted if visible is None else _LOOKED_AT
        asked = Ranking(ranking.metric, ranking.by_metric, ranking.smallest, most)
        rows = architecture.donors(connection, graph, asked, without=own)
    seen = [
        DonorInfo(
            digest=row.model,
            shared=row.shared,
            nodes=row.nodes,
            value=row.value,
            places=_places(visible, row.versions),
        )
        for row in rows
        if visible is None or row.model in visible.digests
    ]
    return seen[:wanted]


def owners(
    access: RepositoryAccess, catalogs: Catalogs, found: FoundModel, tensor: str
) -> list[OwnerInfo]:
    """Models of all commits that hold a tensor of one, itself among them. Raises NotFoundError."""
    found.model.spec(tensor)
    with catalogs.reading(access) as (connection, visible):
        rows = architecture.owners(connection, found.model.entry.digest, tensor)
    return [
        OwnerInfo(digest=row.model, tensor=row.tensor, places=_places(visible, row.versions))
        for row in rows
        if visible is None or row.model in visible.digests
    ][:MOST]


def _places(
    visible: Visible | None, versions: tuple[architecture.Version, ...]
) -> list[ModelPlace]:
    return [
        ModelPlace(path=one.path, commit=one.commit)
        for one in versions
        if visible is None or one.commit in visible.commits
    ][:MOST]
