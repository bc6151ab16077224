"""Model handle of the SDK: tensors of one commit, read and verified when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from tensorrepo import hints
from tensorrepo.context import Context
from tensorrepo.describe import model_table
from tensorrepo.formats.common.arguments import (
    check_instance,
    chosen,
    counted,
    encodable,
    file_path,
    flag,
    text,
    wrong,
)
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorOutput
from tensorrepo.formats.exchange.checkpoints.models import export_model, export_options
from tensorrepo.formats.exchange.checkpoints.safetensors import write_safetensors
from tensorrepo.formats.model.comparison import ModelDiff, diff_models
from tensorrepo.formats.model.description import ModelDescription, describe_model
from tensorrepo.formats.model.graph.graph import Graph
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.maintenance.similar_models import Similarity, similar_models
from tensorrepo.formats.model.maintenance.usage import every_tree, models_at
from tensorrepo.formats.model.merging.adapters import Adapter, adapter_of
from tensorrepo.formats.model.merging.new_model import ModelRef, remake
from tensorrepo.formats.model.merging.recipe import recipe_of
from tensorrepo.formats.model.read.selection import BasicIndex
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec, open_model
from tensorrepo.formats.model.verification import VerificationReport, verify_model
from tensorrepo.formats.purged import refuse_purged_parts
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import RecordTable, Shown
from tensorrepo.runs.run_context import noted


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ModelTensor:
    """A tensor of a stored model, of which only the parts that are asked for are read, verified.

    ``model.tensor("fc1.weight")[0:128]`` reads 128 rows; an index is made of integers, slices with
    a positive step and an ellipsis.
    """

    stored: StoredModel
    spec: TensorSpec
    output: TensorOutput
    planes: int | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def type(self) -> str:
        """Element type by its name in safetensors, such as ``F32`` or ``BF16``."""
        return self.spec.type.name

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"tensor {self.name!r} is one number: it has no length")
        return self.shape[0]

    def __getitem__(self, index: BasicIndex) -> Any:
        return self.stored.slice(self.name, index, output=self.output, planes=self.planes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # Its own copy: a view of the stored bytes could not be written to.
        array: NDArray[Any] = self.stored.slice(self.name, ..., planes=self.planes)
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        size = counted(self.spec.size_bytes, "byte")
        return f"<tensor {self.name}: {self.type} {list(self.shape)}, {size}>"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Model(Shown):
    """A model of one commit. Tensors are read, and verified, when they are asked for."""

    context: Context
    path: str
    commit: Digest
    stored: StoredModel

    @property
    def name(self) -> str:
        return self.path.removeprefix("models/")

    @property
    def digest(self) -> Digest:
        """What the model is, wherever and however it is stored."""
        return self.stored.entry.digest

    def __getattr__(self, name: str) -> NoReturn:
        raise hints.no_attribute(self, name, hints.MODEL)

    def keys(self) -> tuple[str, ...]:
        """Names of tensors, sorted."""
        return self.stored.keys()

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.stored

    def __getitem__(self, name: str) -> Any:
        """One tensor as a read-only array."""
        self._refuse_purged(name)
        return self.stored[name]

    def _refuse_purged(self, name: str) -> None:
        """Raise PurgedError for a tensor that is not there as it was purged."""
        if name not in self.stored:
            refuse_purged_parts(self.context.core.objects, self.path, [name], "tensor")

    def spec(self, name: str) -> TensorSpec:
        """Type, shape and bytes of a tensor, without reading it."""
        self._refuse_purged(text("the name of a tensor", name))
        return self.stored.spec(name)

    def tensor(self, name: str, *, output: str = "numpy", planes: int | None = None) -> ModelTensor:
        """A tensor to be indexed, of which only the parts that an index touches are read.

        Args:
            name: name of the tensor.
            output: library of what an index gives: "numpy" or "torch".
            planes: as of `load`.

        Raises:
            NotFoundError: no such tensor; says which are near.
        """
        return ModelTensor(self.stored, self.spec(name), _output(output), planes)

    def rows(self, name: str, ids: Any, *, output: str = "numpy", planes: int | None = None) -> Any:
        """Rows of a tensor by their numbers, such as an embedding table's: ``model[name][ids]``.

        Only what holds those rows is read, each part of it once, and verified.

        Args:
            name: name of the tensor.
            ids: numbers of rows in any order, also several times; negative ones count from the end.
                A list, an array or a torch tensor of any shape, which the result has before that
                of a row.
            output: library of the result: "numpy" or "torch".
            planes: as of `load`.

        Raises:
            NotFoundError: no such tensor; says which are near.
            InvalidInputError: `ids` are no whole numbers, or the tensor lacks one of them.
        """
        asked = text("the name of a tensor", name)
        return self.stored.rows(asked, ids, output=_output(output), planes=planes)

    def load(
        self,
        names: Iterable[str] | None = None,
        *,
        output: str = "torch",
        device: Any = None,
        dtype: Any = None,
        shard: tuple[int, int, int] | None = None,
        planes: int | None = None,
    ) -> dict[str, Any]:
        """Tensors by name.

        Args:
            names: which; None means all.
            output: library of tensors: "torch", or "numpy" for arrays; types that numpy lacks
                (BF16, F8) are unsigned integers of the same bits there.
            device: a torch device to put them on.
            dtype: what floating-point tensors are converted to.
            shard: (dimension, rank, world): of each tensor the part that ``torch.chunk`` would give
                to that rank, and no more of it is read. Tensors without that dimension come whole.
            planes: only so many of the most significant bytes of each number, the others are 0:
                two of a float32 are its bfloat16 truncation, for half of the bytes.
        """
        if names is not None and not isinstance(names, str):
            names = [*names]
            for name in names:
                self._refuse_purged(name)
        return self.stored.load(
            names,
            output=_output(output),
            device=device,
            dtype=encodable("dtype", dtype) if isinstance(dtype, str) else dtype,
            shard=shard,
            planes=planes,
        )

    def state_dict(self, *, device: Any = None, dtype: Any = None) -> dict[str, Any]:
        """All tensors as torch has them: what ``module.load_state_dict`` takes."""
        return self.load(device=device, dtype=dtype)

    def load_into(self, module: Any, *, strict: bool = True) -> None:
        """Read tensors into the parameters and buffers of a torch module, where they lie.

        Args:
            module: has a ``state_dict()``.
            strict: names and types must be the same; False: those that both have are read, and
                converted to the module's types.

        Raises:
            InvalidInputError: names, types or shapes differ, all of which it says; the module is
                left as it was.
        """
        if not hasattr(module, "state_dict"):
            raise wrong("module", "a torch module, which has a state_dict()", module)
        try:
            self.stored.load_state_dict(module, strict=strict)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self.path} does not fit the module: {error}") from error

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write all tensors as one safetensors file; as it was, when it came from one."""
        target = file_path("path", path)
        write_safetensors(self.stored, target, overwrite=flag("overwrite", overwrite))

    def export(
        self,
        path: str | Path,
        format: str | None = None,  # noqa: A002  # the SDK's word
        *,
        overwrite: bool = False,
        **options: object,
    ) -> Path:
        """Write the model in a foreign format, whole or not at all; as it was, if it came as such.

        Args:
            path: what to make; its folder must exist.
            format: safetensors, gguf, onnx, torch, npz, npy, hf (a folder as Hugging Face's
                libraries expect it) or snapshot (the folder as it came); None: told by the suffix.
            overwrite: replace what is there.
            options: options of hf: ``shard_bytes``.

        Returns:
            `path`.

        Raises:
            InvalidInputError: `path` exists, or the format cannot hold a tensor; it is named.
        """
        target, given = file_path("path", path), export_options(options)
        form = None if format is None else text("format", format)
        export_model(self.stored, target, form, overwrite=flag("overwrite", overwrite), **given)
        return target

    @property
    def files(self) -> tuple[str, ...]:
        """Names of files that came along."""
        return tuple(sorted([*self.stored.files, *self.stored.originals]))

    def file(self, name: str) -> bytes:
        """Content of one of them."""
        return self.stored.file(text("the name of a file", name))

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.stored.metrics

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.stored.metadata

    def lineage(self) -> tuple[ProvenanceEdge, ...]:
        """What it was made from."""
        return self.stored.lineage

    def adapter(self) -> Adapter | None:
        """What it changes of its base, when it was stored as an adapter; None for other models."""
        found = adapter_of(self.stored.lineage)
        return None if found is None else found[1]

    def diff(self, other: Model, *, measure: bool = True) -> ModelDiff:
        """What `other` has changed: tensors added, removed, reshaped, changed and by how much.

        ``diff(...).layers`` are those that moved most. Without `measure` no tensor is read.
        """
        check_instance("other", other, Model, "a model, as repo.model(...) gives it")
        return diff_models(
            self.stored.objects,
            self.stored.entry,
            other.stored.entry,
            measure=measure,
            whole=measure,
        )

    def describe(self) -> ModelDescription:
        """Layers, parameters, types, architecture; no tensor is read."""
        return describe_model(self.stored)

    def similar(self, *, every_ref: bool = False) -> Similarity:
        """The models of its commit, or of every ref, that are like it, the nearest first.

        ``similar().bases`` are those that it was encoded against, and why. No tensor is read.
        """
        core = self.context.core
        trees = {self.commit[:12]: self.context.resolve(self.commit).commit.tree}
        models = models_at(core, every_tree(core) if flag("every_ref", every_ref) else trees)
        return similar_models(self.stored.objects, self.stored.entry, models)

    def graph(self) -> Graph:
        """Its architecture; ``graph().source`` tells whether it was traced or is guesswork."""
        return model_graph(self.stored)

    def verify(self) -> VerificationReport:
        """Read all of it, and check every byte; ``verify().faults`` is empty when it is whole."""
        return verify_model(self.stored)

    def remake(self) -> tuple[str, ...]:
        """Make a merged model again by its recipe, and compare; nothing is stored.

        Returns:
            Names of tensors that come out otherwise than they are stored; none: all are equal.

        Raises:
            InvalidInputError: it was not made by `merge_models`.
            NotFoundError: a model that it was made of is gone.
        """
        recipe = recipe_of(self.stored.manifest)
        if recipe is None:
            raise InvalidInputError(f"{self.path} was not merged of others: it has no recipe")
        commits = {edge.digest: edge for edge in self.stored.lineage}
        parents = [self._parent(commits.get(digest), digest) for digest in recipe.parents]
        base = None
        if recipe.base is not None:
            base = self._parent(commits.get(recipe.base), recipe.base)
        return remake(self.stored, recipe, parents, base)

    def _parent(self, edge: ProvenanceEdge | None, digest: str) -> ModelRef:
        if edge is None or edge.commit is None:
            raise NotFoundError(
                f"model {digest:.12}, of which {self.path} was made: no commit is known"
            )
        found = model_at(self.context, edge.path, edge.commit)
        return ModelRef(found.stored, found.path, found.commit)

    def to_table(self) -> RecordTable:
        """The first tensors: what ``print`` and notebooks show."""
        return model_table(repr(self)[1:-1], self.stored)

    def __reduce__(self) -> tuple[Any, ...]:
        return model_at, (self.context, self.path, self.commit)

    def __repr__(self) -> str:
        told = f"{counted(len(self), 'tensor')}, {counted(self.stored.size_bytes, 'byte')}"
        return f"<model {self.name}: {told}, commit {self.commit:.12}>"


def _output(output: str) -> TensorOutput:
    return "torch" if chosen("output", output, ("numpy", "torch")) == "torch" else "numpy"


def model_at(context: Context, name: str, ref: str = "main") -> Model:
    """See `Repository.model`."""
    revision, path, entry = context.entry("models", name, ref, Kind.MODEL)
    return noted(Model(context, path, revision.digest, open_model(context.core.objects, entry)))
