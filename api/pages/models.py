"""Pages of models: one with its tensors and origins, and two versions compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.content import models, registry
from tensorrepo.api.content.cards import render_card
from tensorrepo.api.content.documents import SHOWN_BYTES
from tensorrepo.api.content.models import FoundModel, TensorInfo
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import FOREVER, RepositoryPage
from tensorrepo.api.pages.repository import Ref, ref_link, ref_names, revision_at
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.query.drawing.architecture import draw_architecture
from tensorrepo.query.drawing.parts import COLORS, legend
from tensorrepo.query.drawing.treemap import Tile, treemap
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.tables import bytes_text

router: Final = deferred_router(include_in_schema=False)
_TENSORS: Final = 100  # of a page
_LAYERS: Final = 400
_CARDS: Final = frozenset({"readme.md", "readme"})
_FRONT_MATTER = re.compile(r"\A---\r?\n.*?^---\s*$", re.DOTALL | re.MULTILINE)  # YAML of a card


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """What a model came from, in words, and where its page is."""

    relation: str
    path: str
    digest: str
    href: str


@router.get("/{repository:repository}/-/models/{name:path}")
def model(page: RepositoryPageOf, name: str, ref: Ref = "") -> Response:
    """A model: its card, how its bytes are stored, its layers, what it came from."""
    ref, _ = revision_at(page, ref)
    found = models.find_model(page.access, name, ref)
    details = models.get_model(page.access, name, ref)
    tensors = list(models.list_tensors(found))
    description = details.description
    return page.render(
        "model.html",
        refs=ref_names(page.access),
        ref=ref,
        refs_to=ref_link(page, found.path),
        found=found,
        details=details,
        description=description,
        layers=description["layers"][:_LAYERS],
        more_layers=len(description["layers"]) - _LAYERS,
        stored_bytes=sum(one.stored_bytes for one in tensors),
        drawing=tensor_map(tensors, f"Bytes of the tensors of {details.name}"),
        key=codec_legend(tensors),
        tensors=tensors[:_TENSORS],
        following=_TENSORS if len(tensors) > _TENSORS else None,
        q="",
        origins=[_origin(page, one) for one in description["lineage"]],
        files=models.list_files(found),
        card=_card(found),
        registered=registry.known_model(page.access, details.name),
    )


@router.get("/{repository:repository}/-/tensors/{name:path}")
def tensors(
    page: RepositoryPageOf,
    name: str,
    ref: Ref = "",
    q: Annotated[str, Query(max_length=500)] = "",
    skip: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Tensors of a model whose names hold `q`, a page of them: a part of the model's page."""
    ref, _ = revision_at(page, ref)
    found = models.find_model(page.access, name, ref)
    fitting = (one for one in models.list_tensors(found) if q.lower() in one.name.lower())
    shown = list(islice(fitting, skip, skip + _TENSORS + 1))
    return page.render(
        "_tensors.html" if page.is_fragment else "tensors.html",
        found=found,
        details=models.model_info(found.path, found.model.entry),
        ref=ref,
        q=q,
        tensors=shown[:_TENSORS],
        following=skip + _TENSORS if len(shown) > _TENSORS else None,
    )


@router.get("/{repository:repository}/-/architecture/{name:path}")
def architecture(page: RepositoryPageOf, name: str, ref: Ref = "") -> Response:
    """The graph of a model's modules: a part of its page."""
    ref, revision = revision_at(page, ref)
    graph = model_graph(models.find_model(page.access, name, ref).model)
    answer = page.render("_architecture.html", graph=graph, drawing=draw_architecture(graph))
    if ref == revision.digest:
        answer.headers["Cache-Control"] = FOREVER
    return answer


def compare_models(page: RepositoryPage, path: str, old: str, new: str) -> Response:
    """Two versions of a model: layers by how far they moved; it reads what changed."""
    name = path.removeprefix(models.SPACE)
    before = models.find_model(page.access, name, old)
    after = models.find_model(page.access, name, new)
    told = models.diff(before, after, measure=True)
    return page.render("_compare_models.html", told=told, drawing=_ranked(told["layers"]))


def _card(found: FoundModel) -> str:
    """What the model says of itself in a README of its own, as safe HTML; "" where it has none."""
    file = next((one for name, one in found.model.files.items() if name.lower() in _CARDS), None)
    if file is None or file.size_bytes > SHOWN_BYTES:
        return ""
    text = found.model.file(file.name).decode("utf-8", "replace")
    return render_card(_FRONT_MATTER.sub("", text, count=1))


def codec_names(tensors: Sequence[TensorInfo]) -> list[str]:
    """Ways of storing, the one with the most bytes first."""
    sizes: Counter[str] = Counter()
    for one in tensors:
        sizes[_codec(one)] += one.bytes
    return [name for name, _ in sizes.most_common(COLORS)]


def codec_legend(tensors: Sequence[TensorInfo]) -> str:
    """The colors of a treemap, in words."""
    return legend(codec_names(tensors))


def tensor_map(tensors: Sequence[TensorInfo], label: str) -> str:
    """A treemap of bytes, colored by how tensors are stored."""
    colors = {name: at for at, name in enumerate(codec_names(tensors))}
    tiles = [
        Tile(
            one.name,
            one.bytes,
            colors.get(_codec(one), COLORS - 1),
            f"{one.name}: {one.dtype}{one.shape}, {bytes_text(one.bytes)}, "
            f"stored in {bytes_text(one.stored_bytes)} as {_codec(one)}",
        )
        for one in tensors
        if one.alias_of is None
    ]
    return treemap(tiles, label)


def _codec(one: TensorInfo) -> str:
    words = " + ".join(one.codecs)
    return f"{words}, against a base" if one.has_base else words


def _ranked(layers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Layers with how far they moved, and that as a share of the farthest."""
    moved = [
        (str(one["layer"]), float(one["relative"] if one["relative"] is not None else one["l2"]))
        for one in layers
    ]
    most = max((by for _, by in moved), default=0.0) or 1.0
    return ((name, by, by / most) for name, by in moved)


def _origin(page: RepositoryPage, edge: Mapping[str, Any]) -> ModelOrigin:
    path, commit = str(edge["path"]), edge.get("commit")
    known = path.startswith(("datasets/", "models/", "views/", "runs/"))
    href = page.here(path, ref=commit if not path.startswith("runs/") else None) if known else ""
    return ModelOrigin(str(edge["relation"]), path, str(edge["digest"] or ""), href)
