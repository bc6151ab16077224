"""Models of commits, for one caller: lists, descriptions, tensors, and how models compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.formats.common.arguments import path_in
from tensorrepo.formats.common.summaries import summarized_model
from tensorrepo.formats.model.comparison import diff_models
from tensorrepo.formats.model.description import describe_model
from tensorrepo.formats.model.layout.placement import StoredTensor
from tensorrepo.formats.model.maintenance.similar_models import similar_models
from tensorrepo.formats.model.maintenance.usage import models_at
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind

SPACE: Final = "models/"
DEFAULT_REF: Final = "main"
INLINE: Final = "inline"
MOST_COMPARED: Final = 2000  # models that one is compared with at once


class ModelInfo(BaseModel):
    """A model of a commit."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Its path below `models/`.", examples=["vision/classifier"])
    path: str = Field(examples=["models/vision/classifier"])
    digest: str = Field(description="Digest of its content: equal for equal models.")
    tensors: int = Field(description="Number of its tensors, tied ones counted.")
    bytes: int = Field(description="Bytes of its tensors in memory.")


class ModelDetails(ModelInfo):
    """All that is known of a model without reading a tensor."""

    ref: str = Field(description="Revision that was asked for.")
    commit: str
    description: dict[str, Any] = Field(
        description="Layers, parameters, types, architecture, files, metrics, lineage."
    )


class TensorInfo(BaseModel):
    """A tensor of a model."""

    model_config = ConfigDict(frozen=True)

    name: str
    dtype: str = Field(description="Element type, as safetensors names it.", examples=["BF16"])
    shape: list[int]
    bytes: int
    fingerprint: str | None = Field(description="Names its content; null for the smallest.")
    alias_of: str | None = Field(description="Tensor that it is one with.")
    codecs: list[str] = Field(description="How it is stored; `inline` in the manifest.")
    stored_bytes: int = Field(description="Bytes of what holds it, without its bases.")
    has_base: bool = Field(description="Whether it is stored as a difference.")


class FileInfo(BaseModel):
    """A file of a model, given back byte for byte."""

    model_config = ConfigDict(frozen=True)

    name: str
    bytes: int
    sha256: str
    format: str | None = Field(description="Of a file made of tensors, such as safetensors.")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model, opened, and where it was found."""

    ref: str
    revision: Revision
    path: str
    model: StoredModel

    @property
    def name(self) -> str:
        return self.path.removeprefix(SPACE)


def list_models(
    access: RepositoryAccess, ref: str = DEFAULT_REF, *, prefix: str = ""
) -> list[ModelInfo]:
    """Models of a commit by name; nothing but the tree is read."""
    revision = access.resolve(ref)
    entries = access.core.entries(revision.commit.tree, SPACE + prefix)
    found = [model_info(path, entry) for path, entry in entries if entry.kind is Kind.MODEL]
    return sorted(found, key=lambda one: one.name)


def model_info(path: str, entry: Entry) -> ModelInfo:
    tensors, size = summarized_model(entry) or (0, 0)
    return ModelInfo(
        name=path.removeprefix(SPACE),
        path=path,
        digest=entry.digest,
        tensors=tensors,
        bytes=size,
    )


def find_model(access: RepositoryAccess, name: str, ref: str = DEFAULT_REF) -> FoundModel:
    """The model of that name in a commit. Raises NotFoundError."""
    revision = access.resolve(ref)
    path = path_in("models", name)
    entry = access.core.entry(revision.commit.tree, path)
    if entry is None or entry.kind is not Kind.MODEL:
        raise NotFoundError(
            f"no model {name!r:.100} in commit {revision.digest:.12} ({ref:.100}); "
            "GET .../-/models lists those there are"
        )
    return FoundModel(ref, revision, path, open_model(access.core.objects, entry))


def get_model(access: RepositoryAccess, name: str, ref: str = DEFAULT_REF) -> ModelDetails:
    """A model in full, but for its tensors."""
    found = find_model(access, name, ref)
    info = model_info(found.path, found.model.entry)
    return ModelDetails(
        **info.model_dump(),
        ref=ref,
        commit=found.revision.digest,
        description=describe_model(found.model).to_json(),
    )


def list_tensors(found: FoundModel) -> Iterator[TensorInfo]:
    """Tensors of a model by name, and how each is stored; no tensor is read."""
    model = found.model
    stored = model.packs.stored
    for name in model:
        spec = model.spec(name)
        target = spec.alias_of or name
        pieces = model.tensors[target].pieces
        held = [stored.get(piece.fingerprint or b"") for piece in pieces]
        members = [member for one in held if one is not None for member in one.members]
        yield TensorInfo(
            name=name,
            dtype=spec.type.name,
            shape=list(spec.shape),
            bytes=spec.size_bytes,
            fingerprint=spec.fingerprint,
            alias_of=spec.alias_of,
            codecs=_codecs(held) or [INLINE],
            stored_bytes=sum(member.stored_bytes for member in members),
            has_base=any(member.bases for member in members),
        )


def list_files(found: FoundModel) -> list[FileInfo]:
    """Files of a model by name, those that are made of tensors included."""
    model = found.model
    plain = [
        FileInfo(name=file.name, bytes=file.size_bytes, sha256=file.sha256.hex(), format=None)
        for file in model.files.values()
    ]
    made = [
        FileInfo(
            name=file.name, bytes=file.size_bytes, sha256=file.sha256.hex(), format=file.format
        )
        for file in model.originals.values()
    ]
    return sorted([*plain, *made], key=lambda one: one.name)


def diff(old: FoundModel, new: FoundModel, *, measure: bool) -> dict[str, Any]:
    """What changed between two models; with `measure` how far, which reads what changed."""
    objects = new.model.objects
    told = diff_models(objects, old.model.entry, new.model.entry, measure=measure, whole=measure)
    return {"summary": told.summary, **told.to_json()}


def similar(access: RepositoryAccess, found: FoundModel, *, every_ref: bool) -> dict[str, Any]:
    """Models that are like one, of its commit or of every ref that the caller may read.

    At most `MOST_COMPARED`; `left_out` counts those beyond. Bases that the caller cannot find in
    these are not named.
    """
    trees = {found.ref: found.revision.commit.tree}
    if every_ref:
        trees |= {
            ref.removeprefix(BRANCHES).removeprefix(TAGS): read_commit(
                access.core.objects, commit
            ).tree
            for ref, commit in sorted(access.refs().items())
        }
    reached = models_at(access.core, trees)
    some = reached[:MOST_COMPARED]
    told = similar_models(access.core.objects, found.model.entry, some).to_json()
    known = {one.digest for one in reached}
    told["bases"] = [base for base in told["bases"] if access.reads_all or base["digest"] in known]
    return {**told, "left_out": len(reached) - len(some)}


def _codecs(held: list[StoredTensor | None]) -> list[str]:
    return sorted({member.codec for one in held if one is not None for member in one.members})
