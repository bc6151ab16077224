"""Versions side by side, and the cards of models and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.content.registry import (
    VersionInfo,
    get_model,
    get_version,
)
from tensorrepo.api.content.runs import find_run
from tensorrepo.formats.common.provenance import CHECKPOINT_OF, MADE_BY, relation_of
from tensorrepo.formats.model.comparison import diff_models
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.runs.run_record import RUNS
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, TooLargeError
from tensorrepo.repo.history.commits import read_commit

MOST_VERSIONS: Final = 8
CARD_FILE: Final = "README.md"
MOST_CARD_BYTES: Final = 1 << 20


class VersionComparison(BaseModel):
    """Versions side by side. Lists have an item for each version, in the order asked for."""

    name: str
    versions: list[VersionInfo]
    metrics: dict[str, list[Any]] = Field(description="Null where a version lacks it.")
    params: dict[str, list[Any]] = Field(
        description="Parameters of the runs that made them, as far as the caller may read these."
    )
    bytes: list[int]
    tensors: list[int]
    changes: list[str] = Field(description="Tensors, from the first version to each.")


def compare_versions(
    access: RepositoryAccess, name: str, which: Sequence[int | str]
) -> VersionComparison:
    """Compare versions, by their numbers or by aliases. No tensor is read but very small ones."""
    if not 1 <= len(which) <= MOST_VERSIONS:
        raise InvalidInputError(f"{len(which)} versions: expected 1 to {MOST_VERSIONS}")
    infos = [get_version(access, name, one) for one in which]
    models = [open_version(access, one) for one in infos]
    params = [_params(access, model) for model in models]
    objects = access.core.objects
    first = models[0].entry
    return VersionComparison(
        name=name,
        versions=infos,
        metrics=_side_by_side([one.metrics for one in infos]),
        params=_side_by_side(params),
        bytes=[one.bytes for one in infos],
        tensors=[one.tensors for one in infos],
        changes=[diff_models(objects, first, one.entry, measure=False).summary for one in models],
    )


def open_version(access: RepositoryAccess, version: VersionInfo) -> StoredModel:
    """The model of a version that the caller was shown."""
    tree = read_commit(access.core.objects, access.resolve(version.commit).digest).tree
    _, entry = next(access.core.entries(tree))
    return open_model(access.core.objects, entry)


def registry_card(access: RepositoryAccess, name: str, which: int | str | None = None) -> str:
    """Markdown about a model or a version: what is said about it, else the version's README.md."""
    if which is None:
        described = get_model(access, name)
        if described.description or described.latest is None:
            return described.description
        which = described.latest
    version = get_version(access, name, which)
    return version.description or model_card(open_version(access, version)) or ""


def model_card(model: StoredModel) -> str | None:
    """The README.md that came with a model; None: none did, or it is no text.

    Raises:
        TooLargeError: it is larger than `MOST_CARD_BYTES`.
    """
    file = model.files.get(CARD_FILE)
    if file is None:
        return None
    if file.size_bytes > MOST_CARD_BYTES:
        raise TooLargeError(
            f"{CARD_FILE} has {file.size_bytes} bytes, at most {MOST_CARD_BYTES} are shown as a "
            "card; get it as a file"
        )
    return model.file(CARD_FILE).decode(errors="replace")


def _params(access: RepositoryAccess, model: StoredModel) -> dict[str, Any]:
    for edge in model.lineage:
        if relation_of(edge.relation) in {MADE_BY, CHECKPOINT_OF} and edge.path.startswith(RUNS):
            try:
                run = find_run(access, edge.path.removeprefix(RUNS))
            except (NotFoundError, InvalidInputError):
                continue
            if run.id == edge.digest:
                return dict(run.params)
    return {}


def _side_by_side(told: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = sorted({name for one in told for name in one})
    return {name: [one.get(name) for one in told] for name in names}
